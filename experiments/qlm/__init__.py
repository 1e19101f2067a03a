"""QLM (Patke et al., "Queue Management for SLO-Oriented LLM Serving", SoCC 2024), section by section."""
