"""Programs that run inside the sandbox, copied into each box; nothing here is imported outside."""
