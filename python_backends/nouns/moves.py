"""What is said while a running request moves from one instance to another: between the scheduler model and
both instances, and between the instances themselves.

    scheduler model ── Reserve ─► destination ── Reserved or Refused ─► scheduler model
    scheduler model ── MoveOut ─► source ══ Blocks, … , Last ══► destination (which answers with Ack or Nak)
    source ── Suspended ─► scheduler model ◄─ Adopted ── destination

`move` is a number that the scheduler model gives to one attempt; it never gives it again.
"""

from __future__ import annotations

from typing import Literal

from python_backends.nouns.request import Ids, Noun, Request

Refusal = Literal[
    "slots",
    "memory",
    "adapter",  # it is not loaded there yet
    "guide",  # it is not compiled there yet
    "model",  # or something that comes does not fit the request
    "busy",  # a move of this number is there already
]
End = Literal[
    "ended",  # the request has ended there, has lost its slot, or has no token of this slot yet
    "refused",  # by the destination, or by the source: it can't send there
    "too_slow",  # blocks became full faster than they were copied
    "lost",  # nothing has come for too long
    "gone",  # the request can't go on there: it is not suspended there any more
]


class Reserve(Noun, frozen=True, eq=False):
    """To the destination: keep a slot and KV blocks for this request, which may come with its tokens so far.

    It will go on there as life `request_epoch` of its stream. `delivered` are the output tokens that the
    scheduler model has at present: the request has at least these.
    """

    move: int
    request: Request
    delivered: Ids  # [n]
    request_epoch: int
    age_s: float = 0.0  # since it was accepted: its place among the requests there


class MoveOut(Noun, frozen=True):
    """To the source: copy the KV blocks of this request to `to`, then suspend it and hand it over."""

    move: int
    request_id: int
    request_epoch: int  # its present life, at the source
    to: str  # ZeroMQ endpoint of the destination's blocks socket
    first_block: int  # the destination has the blocks before this one: of a prompt with the same beginning


class AbortMove(Noun, frozen=True):
    """To either end: the move is off. The source goes on with the request, unless it is suspended already.
    The destination frees what it keeps for it.
    """

    move: int


class Resume(Noun, frozen=True):
    """To the source: the destination did not take the request over. It goes on in its slot as life
    `request_epoch`.
    """

    move: int
    request_id: int
    request_epoch: int


class Reserved(Noun, frozen=True):
    """From the destination: a slot and blocks are kept. The first `num_found_blocks` blocks are there
    already.
    """

    move: int
    num_found_blocks: int


class Refused(Noun, frozen=True):
    """From the destination: it can't take the request now, for this reason."""

    move: int
    why: Refusal


class Suspended(Noun, frozen=True):
    """From the source: the request's life there ends with output token number `num_tokens`, counted from 0
    and not included. The source has sent all tokens before that one, and keeps slot and blocks.
    """

    move: int
    num_tokens: int


class Adopted(Noun, frozen=True):
    """From the destination: the request goes on here; its first token here has this index in the answer."""

    move: int
    request_id: int
    request_epoch: int
    first_index: int


class MoveEnded(Noun, frozen=True):
    """From either end: the move has ended before the request was handed over."""

    move: int
    why: End


class Blocks(Noun, frozen=True):
    """Between instances: KV blocks [first, first + count) of the request; their bytes are in the next
    frame.
    """

    move: int
    first: int
    count: int


class Last(Noun, frozen=True, eq=False):
    """Between instances: the request's tokens, and its last, partly filled block in the next frame (which is
    empty if there is none). With this message the request belongs to the destination.
    """

    move: int
    output_tokens: Ids  # [n] all of its answer so far
    first: int  # block number of the block that follows
    count: int  # 0 or 1, or more if the last round was short


class Ack(Noun, frozen=True):
    """Between instances: one message with blocks has been taken, so another one may be sent."""

    move: int


class Nak(Noun, frozen=True):
    """Between instances: the destination does not take the request. It has freed what it kept for it."""

    move: int
    why: Refusal
