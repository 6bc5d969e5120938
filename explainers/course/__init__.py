"""What stands round the lessons: the hub with the path, the glossary, the readings, the proof. May look into every lesson."""
