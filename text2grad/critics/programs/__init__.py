"""Critics that need no model: one folder per task, named by ``Task.programmatic_critic``."""
