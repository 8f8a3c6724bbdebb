"""One scenario that many tests of the judge start from."""

from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step

SIBLINGS = Scenario(
    Geometry((Group("full", 4), Group("mamba", 4)), 4, 40),
    Limits(budget=16, sequences=4),
    (
        Step(0, add=(Request("r0", ("sys:18", "a:5"), 2),)),
        Step(6, add=(Request("r1", ("sys:18", "b:5"), 2),)),
        Step(14, add=(Request("r2", ("sys:18", "c:5"), 2),)),
    ),
    Features(retention=0),
)
"""Three siblings under interval 0: the second finds the junction at 16, the third reuses it."""
