"""Studies of planning and learning, and what they measure with (`matched`)."""
