"""Guided stories."""
STORIES: list = []
