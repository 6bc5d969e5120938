"""Lesson: when memory runs out, who gives way, who goes first, and who pays."""
