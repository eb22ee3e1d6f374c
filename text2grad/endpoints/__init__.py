"""OpenAI-compatible endpoints: one client with pacing, a reply cache and a budget, and the judging of pairs."""
