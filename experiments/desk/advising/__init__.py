"""What `llmscale advise` stands on: the case that is asked about, the search for settings, the verdict."""
