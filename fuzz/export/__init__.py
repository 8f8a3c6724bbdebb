"""A finding handed to vLLM's maintainers: as a test of their own kind, or as the body of a bug report."""
