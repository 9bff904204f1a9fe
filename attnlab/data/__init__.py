"""Data: corpora as token arrays, windows as a pure function of (seed, step), n-gram references."""
