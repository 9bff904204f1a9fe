"""attnlab: the codebase in which a claim about attention is settled."""

__version__ = "0.1.0"
