"""The order of events, and one request."""
