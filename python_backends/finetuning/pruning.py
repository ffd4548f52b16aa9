"""What a forward pass keeps of each token for the backward pass, and what it leaves out because frozen
weights have no gradient: the F-rules of FlexLLM (NSDI 2026), as arithmetic.

* F-5: the input of a frozen product is not kept. That of an adapter is made again from what is kept.
* F-6: a dial of three policies. `products` keeps what products gave, `attention` makes gate and up again,
  `inputs` the whole layer. Keys and values are kept by all.
* F-7: where nothing before needs a gradient, the backward pass ends, and what it would have read is not kept.
  RELU without a gate needs one bit a value, unless an adapter of `down` reads the values.

Pure. The torch engine asks it what to keep; the benchmark prints it beside what it measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from python_backends.nouns.training import Keep, LayerFacts, LayerPlan, Needs

LEFT_OUT = {
    Keep.PRODUCTS: frozenset[str](),
    Keep.ATTENTION: frozenset({"gate_up", "attended", "fed"}),
    Keep.INPUTS: frozenset({"gate_up", "attended", "fed", "q", "qk", "x2"}),
}


def needs(layer: int, targets: Mapping[int, frozenset[str]], parallel: bool) -> Needs:
    """`targets`: the projections with adapters, by layer; layers without any may be absent."""
    here = targets.get(layer, frozenset())
    before = any(names for index, names in targets.items() if index < layer)
    qkv = before or "qkv" in here
    o = qkv or "o" in here
    through = before or (o and not parallel)
    up = through or "up" in here
    return Needs(qkv, o, up, up or "down" in here, through, before)


def plans(
    facts: Sequence[LayerFacts], targets: Mapping[int, frozenset[str]], policy: Keep
) -> tuple[LayerPlan, ...]:
    """What to keep and where to go, one a layer."""
    return tuple(
        LayerPlan(
            needs(layer, targets, each.parallel),
            kept(layer, each, targets, policy),
            _keeps_signs(each, targets.get(layer, frozenset())),
        )
        for layer, each in enumerate(facts)
    )


def first_layer(targets: Mapping[int, frozenset[str]]) -> int:
    """The backward pass ends after this one."""
    return min(layer for layer, names in targets.items() if names)


def kept(
    layer: int, facts: LayerFacts, targets: Mapping[int, frozenset[str]], policy: Keep
) -> dict[str, float]:
    """Values a token that `layer` keeps, by name; a bit is 1/32 of a value.

    x1 and x2 are the residual stream before attention and before the feed-forward part, q the rotated queries
    (qk: queries and keys as the product gave them, where heads are normed), kv keys and values, gate_up what
    the product gave, attended and fed what comes before an output norm.
    """
    goes = needs(layer, targets, facts.parallel)
    if not goes.down and not goes.o:
        return {}
    bits = _keeps_signs(facts, targets.get(layer, frozenset()))
    widths = {
        "x1": (facts.hidden, _reads_x1(goes, facts, policy)),
        "qk": (facts.query + facts.kv, goes.o and facts.norms_heads),
        "q": (facts.query, goes.o and not facts.norms_heads),
        "kv": (2 * facts.kv, goes.o or policy == Keep.INPUTS),
        "attended": (facts.hidden, goes.o and facts.norms_attended),
        "x2": (facts.hidden, _reads_x2(goes, facts, policy)),
        "gate_up": (facts.up / 32 if bits else facts.up, goes.down),
        "fed": (facts.hidden, goes.down and facts.norms_fed),
    }
    return {
        name: width for name, (width, is_read) in widths.items() if is_read and name not in LEFT_OUT[policy]
    }


def _keeps_signs(facts: LayerFacts, targets: frozenset[str]) -> bool:
    return facts.is_plain_relu and "down" not in targets and not facts.norms_fed


def _reads_x1(goes: Needs, facts: LayerFacts, policy: Keep) -> bool:
    from_start = policy == Keep.INPUTS or (facts.parallel and (goes.up or policy != Keep.PRODUCTS))
    return goes.qkv or from_start


def _reads_x2(goes: Needs, facts: LayerFacts, policy: Keep) -> bool:
    """In parallel layers it is x1."""
    return not facts.parallel and (goes.up or (goes.down and policy == Keep.ATTENTION))
