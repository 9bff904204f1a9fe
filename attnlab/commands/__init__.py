"""What the subcommands of `attnlab` do, each with its flags; `attnlab.cli` parses and calls them."""
