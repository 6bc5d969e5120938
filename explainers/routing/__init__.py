"""Lesson: where a request is sent decides what is remembered of its conversation."""
