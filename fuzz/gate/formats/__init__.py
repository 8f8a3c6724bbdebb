"""A gate's report in the formats that people and programs read; each module has ``render(report) -> str``."""
