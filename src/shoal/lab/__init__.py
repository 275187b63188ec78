"""The laboratory: Setting -> Setup -> Run, theorems about runs, studies of many, claims."""
