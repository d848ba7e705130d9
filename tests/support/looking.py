"""A look-up that a test lets answer, and counts."""

from __future__ import annotations

import asyncio

from tests.support.waiting import eventually


class Service:
    """Answers when it is let, with ``answer``; raises it where it is an error."""

    def __init__(self, answer: object = "value", *, at_once: bool = False) -> None:
        self.calls: list[str] = []
        self.answer = answer
        self.may_answer = asyncio.Event()
        if at_once:
            self.may_answer.set()

    async def __call__(self, key: str) -> object:
        self.calls.append(key)
        await self.may_answer.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def asked(self, times: int = 1) -> None:
        """Wait until it was called this often; the callers wait for it then."""

        async def look() -> int:
            return len(self.calls)

        await eventually(look, lambda calls: calls >= times)
