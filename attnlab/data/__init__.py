"""Data: texts to tokens to corpora, windows as a pure function of (seed, step), n-gram references."""
