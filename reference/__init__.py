"""What must be decided: the split, the lookup, retention and the worker, as plain Python over integers.

Standard library only. One concept a file, each opening with one sentence. The same functions are run
by the judge on integers and explored by the prover on symbolic ones. ``scheduler`` puts them together to
a small engine: whoever wants to see where a decision is asked for begins there.
"""
