"""One file per command; each is thin: options in, a call, text or JSON out."""
