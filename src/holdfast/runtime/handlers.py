"""The user's functions, and what the runtime knows of them: kind, payload type, limits, where they run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_type_hints

import msgspec

from holdfast import tracing
from holdfast.engine.backoff import Backoff
from holdfast.engine.intake import payload_text
from holdfast.engine.ledger import Ledger
from holdfast.engine.values import Item
from holdfast.errors import InvalidInput
from holdfast.runtime.context import Context, SyncContext

Place = Literal["loop", "thread", "process"]
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One function that does one kind of work.

    `timeout` is in seconds, None for none. `backoff` is how long bad runs wait, None for the ledger's own
    way. `limit` is what a row gets at enqueue when nobody says otherwise.
    `place`: async functions run in the event loop, others in a thread, or in a process of their own.
    `cancel_when_lost`: whether a run is cancelled when the worker's lease is lost.
    """

    kind: str
    function: Callable[..., Any]
    payload: Any = Any
    ledger: str | None = None
    timeout: float | None = None
    backoff: Backoff | None = None
    limit: int | None = None
    place: Place = "loop"
    cancel_when_lost: bool = True
    takes_payload: bool = True
    takes_context: bool = False
    decode: Callable[[str], Any] = field(default=msgspec.json.decode, compare=False)

    def arguments(self, payload: Any, context: Any) -> tuple[Any, ...]:
        """What the function is called with: payload, then context, each if it takes it."""
        given = (payload,) if self.takes_payload else ()
        return (*given, context) if self.takes_context else given

    def read(self, text: str | None) -> Any:
        """The payload as the function's own type, or `InvalidInput` with the path of what does not fit."""
        if text is None and self.payload is Any:
            return None
        try:
            return self.decode("null" if text is None else text)
        except Exception as error:  # a user's type may refuse by whatever it raises
            raise InvalidInput(field="payload", message=str(error) or type(error).__name__) from None


class Handlers:
    """The handlers of an application, found by ledger and kind."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str], Handler] = {}
        self._left_out: frozenset[tuple[str | None, str]] = frozenset()

    def __iter__(self) -> Iterator[Handler]:
        return (self._known[place] for place in self._places())

    def _places(self) -> Iterator[tuple[str | None, str]]:
        return (place for place in self._known if place not in self._left_out)

    def add(self, handler: Handler) -> None:
        """Registers a handler; one kind of one ledger has one."""
        place = (handler.ledger, handler.kind)
        if place in self._known:
            where = f" in {handler.ledger}" if handler.ledger else ""
            raise InvalidInput(field="kind", message=f"{handler.kind!r} has a handler already{where}")
        self._known[place] = handler

    def find(self, ledger: str, kind: str) -> Handler | None:
        """The handler of a kind: the ledger's own, else the one for every ledger."""
        places = ((ledger, kind), (None, kind))
        return next(
            (self._known[one] for one in places if one in self._known and one not in self._left_out), None
        )

    def kinds(self, ledger: str) -> list[str]:
        """The kinds that this ledger has handlers for."""
        return sorted({kind for where, kind in self._places() if where in (None, ledger)})

    def names(self, ledger: str) -> bool:
        """Whether a handler was declared for this ledger, and not for every one."""
        return any(where == ledger for where, _ in self._places())

    def without(self, others: Iterable[Handler]) -> Handlers:
        """The same without some of them. Handlers that are added later count in both."""
        found = Handlers()
        found._known = self._known
        found._left_out = self._left_out | {(one.ledger, one.kind) for one in others}
        return found


def fit(ledger: Ledger, handlers: Handlers, item: Item, where: str = "") -> Item:
    """The item as its handler wants it: defaults filled in, the payload's shape checked where it is known.

    It belongs to the trace that runs now, unless it names another.
    """
    if not isinstance(item, Item):  # pyright: ignore[reportUnnecessaryIsInstance]
        message = f"must be an Item, not {type(item).__name__}"
        raise InvalidInput(field=where.removesuffix(".") or "item", message=message)
    if ledger.door:
        raise InvalidInput(field=f"{where}ledger", message=f"{ledger.name} is filled by {ledger.door}")
    if ledger.trace and item.trace is None and (trace := tracing.current()):
        item = replace(item, trace=trace)
    handler = handlers.find(ledger.name, item.kind or ledger.name)
    if handler is None:
        return item
    try:
        handler.read(payload_text(item.payload))
    except InvalidInput as error:
        raise InvalidInput(field=f"{where}{error.field}", message=error.fields["message"]) from None
    has_limit = ledger.attempts is not None and isinstance(ledger.attempts.limit, str)
    return replace(item, limit=handler.limit) if has_limit and item.limit is None else item


def describe(function: Callable[..., Any], kind: str, *, place: Place | None, **options: Any) -> Handler:
    """Reads a function's signature: the payload comes first, then the context, each if it wants it."""
    if not kind or not kind.strip():
        raise InvalidInput(field="kind", message="must not be empty")
    if not inspect.isroutine(function) or inspect.isgeneratorfunction(function):
        raise InvalidInput(field="handler", message=f"{kind!r} must be a function that does not yield")
    if inspect.isasyncgenfunction(function):
        raise InvalidInput(field="handler", message=f"{kind!r} must not yield: return an outcome")
    where = place or ("loop" if inspect.iscoroutinefunction(function) else "thread")
    if (where == "loop") != inspect.iscoroutinefunction(function):
        need = "be async" if where == "loop" else "not be async"
        raise InvalidInput(field="place", message=f"a handler that runs in the {where} must {need}")
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    names = [name for name, one in parameters.items() if one.kind in BY_PLACE]
    contexts = [name for name in names if hints.get(name) in (Context, SyncContext) or name == "ctx"]
    payloads = [name for name in names if name not in contexts]
    odd = len(names) < len(parameters) or len(payloads) > 1 or len(contexts) > 1
    if odd or names != payloads + contexts:
        raise InvalidInput(
            field="handler", message=f"{kind!r} must take (payload), (payload, ctx), (ctx) or ()"
        )
    if contexts and where == "process":
        raise InvalidInput(
            field="handler", message=f"{kind!r} runs in a process of its own and gets no context"
        )
    type_ = hints.get(payloads[0], Any) if payloads else Any
    return Handler(
        kind=kind,
        function=function,
        payload=type_,
        place=where,
        takes_payload=bool(payloads),
        takes_context=bool(contexts),
        decode=_decoder(type_),
        **options,
    )


def _decoder(type_: Any) -> Callable[[str], Any]:
    validate = getattr(type_, "model_validate_json", None)
    if validate is not None:  # a pydantic model reads itself
        return validate
    return msgspec.json.Decoder(type_).decode
