"""The Berkeley Function Calling Leaderboard, offline: our prompts and grammars, its questions and its own checker."""
