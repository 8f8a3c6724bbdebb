"""Symbolic integers and conditions: stand-ins for numbers with which ordinary Python functions are explored.

A symbolic integer is a polynomial with integer coefficients over the unknowns of a ``Space``. A comparison
gives a condition; asking for its truth (``if``, ``and``, ``not``) makes the space decide, which is where
paths fork. Nothing here knows a solver.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from spec.space import Space

Monomial = tuple[int, ...]
"""Numbers of the unknowns multiplied, in order; the empty tuple is the constant 1."""

Linear = tuple[tuple[Monomial, int], ...]
"""The monomials of a polynomial with their coefficients, without the constant, sorted: a key."""


class SymbolicError(TypeError):
    """A symbolic value was used where only a plain number can be, so that the run would prove nothing."""


class SymInt:  # noqa: PLW1641 - a symbolic value has no hash, see _plain
    """A polynomial over the unknowns of a space."""

    __slots__ = ("constant", "space", "terms")

    def __init__(self, space: Space, terms: dict[Monomial, int], constant: int) -> None:
        self.space = space
        self.terms = terms
        self.constant = constant

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return SymInt(self.space, self.terms, self.constant + other)
        if not isinstance(other, SymInt):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            total = terms.get(monomial, 0) + factor
            if total:
                terms[monomial] = total
            else:
                del terms[monomial]
        return simplified(self.space, terms, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> SymInt:
        return SymInt(self.space, {monomial: -factor for monomial, factor in self.terms.items()}, -self.constant)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, int):
            return SymInt(self.space, self.terms, self.constant - other)
        return self + (-other) if isinstance(other, SymInt) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int):
            if other == 0:
                return 0
            return SymInt(
                self.space, {mono: factor * other for mono, factor in self.terms.items()}, self.constant * other
            )
        if not isinstance(other, SymInt):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        constant = ((), other.constant)
        for left, left_factor in (*self.terms.items(), ((), self.constant)):
            for right, right_factor in (*other.terms.items(), constant):
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + left_factor * right_factor
        total = terms.pop((), 0)
        return simplified(self.space, {monomial: factor for monomial, factor in terms.items() if factor}, total)

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, list):
            return self.space.repeated(other, self)
        return self * other

    def __floordiv__(self, other: Any) -> Any:
        return self.space.divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self.space.divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return self - self.space.divide(self, other) * other

    def __rmod__(self, other: Any) -> Any:
        return other - self.space.divide(other, self) * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __lt__(self, other: Any) -> Any:
        return at_most(self - other + 1)

    def __le__(self, other: Any) -> Any:
        return at_most(self - other)

    def __gt__(self, other: Any) -> Any:
        return at_most(other - self + 1)

    def __ge__(self, other: Any) -> Any:
        return at_most(other - self)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, float | complex):
            return self._plain()
        if not isinstance(other, int | SymInt):
            return NotImplemented
        return is_zero(self - other)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else negation(equal)

    def __bool__(self) -> bool:
        return not is_zero(self)

    def __repr__(self) -> str:
        return self.space.text(self)

    def _plain(self, *_: object) -> NoReturn:
        raise SymbolicError(f"the symbolic integer {self!r} was used as a plain number")

    __index__ = __int__ = __float__ = __hash__ = __complex__ = __round__ = __trunc__ = _plain
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __lshift__ = __rshift__ = __and__ = __or__ = __xor__ = _plain
    __rlshift__ = __rrshift__ = __rand__ = __ror__ = __rxor__ = __invert__ = __abs__ = _plain


class SymBool:  # noqa: PLW1641 - a condition has no hash, see _plain
    """A condition: ``polynomial <= 0`` or ``polynomial == 0``, or its negation, in one canonical form.

    ``kind``: "le" or "eq". ``linear`` + ``constant``: the polynomial, its first coefficient positive.
    ``negated``: the condition is that this does not hold.
    """

    __slots__ = ("constant", "kind", "linear", "negated", "space")

    def __init__(self, space: Space, kind: str, linear: Linear, constant: int, negated: bool) -> None:
        self.space = space
        self.kind = kind
        self.linear = linear
        self.constant = constant
        self.negated = negated

    @property
    def key(self) -> tuple[str, Linear, int]:
        """The condition without its negation."""
        return (self.kind, self.linear, self.constant)

    def __bool__(self) -> bool:
        return self.space.decide(self)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, SymBool | bool):
            return self if other else negation(self)
        return NotImplemented

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else negation(equal)

    def __repr__(self) -> str:
        return f"{'not ' if self.negated else ''}({self.space.text_of(self.linear, self.constant)} {self.kind} 0)"

    def _plain(self, *_: object) -> NoReturn:
        raise SymbolicError(f"the condition {self!r} was used as a plain number")

    __index__ = __int__ = __float__ = __hash__ = __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = _plain
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = _plain


def simplified(space: Space, terms: dict[Monomial, int], constant: int) -> Any:
    """A polynomial, or a plain integer where nothing symbolic is left of it."""
    return SymInt(space, terms, constant) if terms else constant


def at_most(value: Any) -> Any:
    """The condition ``value <= 0``; for a plain integer its truth."""
    if isinstance(value, int):
        return value <= 0
    if not isinstance(value, SymInt):
        return NotImplemented
    factor = gcd(*value.terms.values())
    bound = -(-value.constant // factor)
    linear, sign = oriented(value.terms, factor)
    if sign > 0:
        return SymBool(value.space, "le", linear, bound, False)
    # -L + b <= 0 is L >= b, that is: not L - (b - 1) <= 0.
    return SymBool(value.space, "le", linear, 1 - bound, True)


def is_zero(value: Any) -> Any:
    """The condition ``value == 0``; for a plain integer its truth."""
    if isinstance(value, int):
        return value == 0
    factor = gcd(*value.terms.values())
    if value.constant % factor:
        return False
    linear, sign = oriented(value.terms, factor)
    return SymBool(value.space, "eq", linear, sign * (value.constant // factor), False)


def oriented(terms: dict[Monomial, int], factor: int) -> tuple[Linear, int]:
    """The terms divided by ``factor`` as a sorted key whose first coefficient is positive, and the sign taken out."""
    items = sorted(terms.items())
    sign = 1 if items[0][1] > 0 else -1
    return tuple((monomial, sign * coefficient // factor) for monomial, coefficient in items), sign


def negation(condition: Any) -> Any:
    """What holds exactly where ``condition`` does not, without deciding it."""
    if isinstance(condition, bool):
        return not condition
    return SymBool(condition.space, condition.kind, condition.linear, condition.constant, not condition.negated)
