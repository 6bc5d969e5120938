"""Policy: the rules by which a server picks what runs next, and presets named after the systems that use them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Batching = Literal["continuous", "static"]
Prompts = Literal["chunked", "whole", "alone"]
Order = Literal["fcfs", "priority", "shortest", "shortest_predicted", "least_attained"]
Reserve = Literal["nothing", "maximum", "power", "output"]
Victim = Literal["last", "newest", "least_urgent", "longest", "shortest"]


MOST_BLOCK = 1 << 20  # tokens in a block: more than any model's context
_MOST = 1 << 40  # blocks, slots, tokens: their sums stay exact


def _whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and abs(int(value)) <= _MOST


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


@dataclass(frozen=True)
class Memory:
    """KV memory as a pool of blocks, and how requests get hold of them.

    blocks         blocks that requests can use (vLLM: num_gpu_blocks less the one it keeps for itself), ≥ 2
    block_size     tokens in a block, ≥ 1
    prefix_cache   free blocks remember what they held, and a prompt that starts alike takes them over
    reserve        "nothing": blocks are taken as tokens come (paged); "maximum": at admission for `longest` tokens
                   (Orca, FasterTransformer); "output": at admission for prompt and output; "power": for prompt and
                   output, that rounded up to a power of two
    contiguous     a reservation is one piece of 2^k blocks from a buddy allocator, as the PagedAttention paper has its
                   baselines (SOSP 2023, section 6.1); else any free blocks will do
    full_prompt    admit only if the whole prompt has blocks, not just its first chunk (vLLM: scheduler_reserve_full_isl)
    watermark      blocks that an admission must leave free while others run; below 1: that share of the pool and one block
    swap_us        None: who is preempted computes its KV anew; else µs per block to move it to the host, and the same back
    refuse         refuse at arrival what can never fit; only replays of a scheduler that does not do so switch it off
    """

    blocks: int
    block_size: int = 16
    prefix_cache: bool = False
    reserve: Reserve = "nothing"
    contiguous: bool = False
    full_prompt: bool = True
    watermark: float = 0.0
    swap_us: float | None = None
    refuse: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError that names the field and its range."""
        if not _whole(self.blocks) or self.blocks < 2:
            raise ValueError(f"memory: blocks must be at least 2, and whole, not {self.blocks}")
        if not _whole(self.block_size) or not 1 <= self.block_size <= MOST_BLOCK:
            raise ValueError(f"memory: block_size must be whole, from 1 to {MOST_BLOCK} tokens, not {self.block_size}")
        if self.reserve not in ("nothing", "maximum", "power", "output"):
            raise ValueError(f"memory: reserve must be 'nothing', 'maximum', 'power' or 'output', not {self.reserve!r}")
        if self.contiguous and self.reserve == "nothing":
            raise ValueError("memory: contiguous pieces are reserved, so reserve must not be 'nothing'")
        for flag in ("prefix_cache", "contiguous", "full_prompt", "refuse"):
            if not isinstance(getattr(self, flag), bool | np.bool_):
                raise ValueError(f"memory: {flag} must be True or False, not {getattr(self, flag)!r}")
        if not _number(self.watermark) or not 0 <= self.watermark <= 1:
            raise ValueError(f"memory: watermark must be a share from 0 to 1, not {self.watermark}")
        if self.swap_us is not None and not (_number(self.swap_us) and 0 <= self.swap_us < math.inf):
            raise ValueError(f"memory: swap_us must be 0 µs per block or more, not {self.swap_us}; None means recompute")
        if self.prefix_cache and self.reserve != "nothing":
            raise ValueError("memory: a prefix cache needs paged memory, so reserve must be 'nothing'")
        if self.prefix_cache and self.swap_us is not None:
            raise ValueError("memory: with a prefix cache swap_us must be None: who is preempted finds its own blocks again")

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free: vLLM counts the block it keeps for itself into the share."""
        return int(self.watermark * (self.blocks + 1))


@dataclass(frozen=True)
class Policy:
    """The rules of one server. Only these differ in a comparison: trace and service are shared.

    name          shown in figures, tables and messages
    batching      "continuous": requests join and leave between any two steps;
                  "static": a batch runs until its last member ends, and only then the next one starts
    slots         most requests that may hold a place at once (vLLM: max_num_seqs; static: the batch size)
    budget        most tokens in one step (vLLM: max_num_batched_tokens); None: no limit. Continuous only; with prompts
                  alone it bounds the steps that hold prompts
    prompts       how a prompt enters (continuous only; a static batch always takes its prompts whole, in one step):
                  "chunked": split so that the step stays within the budget, beside the decodes;
                  "whole":   unsplit, beside the decodes; one that does not fit the rest of the budget waits;
                  "alone":   unsplit, in steps that hold prompts only, and before any decode
    fill_timeout  seconds that the oldest waiting request waits for a static batch to fill; inf: until it is full or
                  the trace ends
    order         who is first among those who wait (sim/orders.py): "fcfs": the earliest; "priority": the smallest
                  priority of the trace; "shortest": the least output left; "shortest_predicted": the same by a noisy
                  guess; "least_attained": the fewest output tokens so far
    victim        who of the running gives way when a block is needed: "last": the last in the order, in fcfs the last
                  admitted (vLLM); "newest": the last to arrive; "least_urgent": the largest priority of the trace;
                  "longest": who has most KV tokens, so most is freed; "shortest": who has fewest, so least is computed
                  anew. Of equals the last to arrive
    noise         of the guess of the output, for the order and for what is reserved: standard deviation of the logarithm
                  of guess over truth; seeded by `seed`. What is reserved cannot grow: there a guess below the truth counts
                  as one as far above it
    memory        the KV pool; None: without limit
    longest       most tokens of a prompt and its output (vLLM: max_model_len): the output is cut there; None: no limit
    chunk_cap     most prompt tokens of one request in a step while others are there (vLLM:
                  long_prefill_token_threshold); 0: no cap
    fair_cap      raise that cap to an equal share of the budget (vLLM: long_prefill_token_threshold_adaptive)
    batched       the budget of which fair_cap takes the share, where it is not `budget` (vLLM: max_num_batched_tokens beside
                  a smaller max_num_scheduled_tokens)
    prefill_every steps from one that carries prompt tokens to the next while decodes run (vLLM:
                  prefill_schedule_interval); 1: no holding back
    """

    name: str
    batching: Batching = "continuous"
    slots: int = 256
    budget: int | None = None
    prompts: Prompts = "chunked"
    fill_timeout: float = math.inf
    order: Order = "fcfs"
    victim: Victim = "last"
    noise: float = 0.0
    seed: int = 0
    memory: Memory | None = None
    longest: int | None = None
    chunk_cap: int = 0
    fair_cap: bool = False
    batched: int | None = None
    prefill_every: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError that names the field and its range."""
        choices = {
            "batching": ("continuous", "static"),
            "prompts": ("chunked", "whole", "alone"),
            "order": ("fcfs", "priority", "shortest", "shortest_predicted", "least_attained"),
            "victim": ("last", "newest", "least_urgent", "longest", "shortest"),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise self._error(field, f"must be one of {', '.join(allowed)}")
        for field in ("slots", "budget", "seed", "longest", "chunk_cap", "batched", "prefill_every"):
            value = getattr(self, field)
            if not _whole(value) and not (value is None and field in ("budget", "longest", "batched")):
                raise self._error(field, "must be a whole number, at most 2^40")
        if self.seed < 0:
            raise self._error("seed", "must be 0 or more")
        if self.batched is not None and self.batched < 1:
            raise self._error("batched", "must be at least 1 token")
        if self.slots < 1:
            raise self._error("slots", "must be at least 1")
        if self.budget is not None and self.budget < 1:
            raise self._error("budget", "must be at least 1 token; None means no limit")
        if not _number(self.fill_timeout) or not self.fill_timeout >= 0:
            raise self._error("fill_timeout", "must be 0 s or more")
        if not _number(self.noise) or not 0 <= self.noise < math.inf:
            raise self._error("noise", "must be 0 or more")
        if self.longest is not None and self.longest < 2:
            raise self._error("longest", "must be at least 2 tokens; None means no limit")
        if self.chunk_cap < 0:
            raise self._error("chunk_cap", "must be 0 tokens (no cap) or more")
        if self.chunk_cap and (self.batching == "static" or self.prompts == "alone"):
            raise self._error("chunk_cap", "must be 0 where prompts are never split: alone, or in a static batch")
        if self.prefill_every < 1:
            raise self._error("prefill_every", "must be at least 1 step")
        if self.batching == "static" and self.order != "fcfs":
            raise self._error("order", "must be fcfs under static batching")
        memory = self.memory
        if memory is None:
            return
        if not isinstance(memory, Memory):
            raise self._error("memory", "must be a Memory; None means no limit")
        if self.batching == "static" and memory.contiguous:
            raise self._error("memory", "of a static batch cannot be contiguous: it is given back as a whole")
        if self.batching == "static" and memory.reserve == "nothing":
            raise self._error("memory", "of a static batch must be reserved, as nobody can be preempted")
        if memory.reserve == "maximum" and self.longest is None:
            raise self._error("longest", "is what memory.reserve = 'maximum' reserves, so it must be given")

    def _error(self, field: str, rule: str) -> ValueError:
        return ValueError(f"policy {self.name!r}: {field} {rule}, not {getattr(self, field)!r}")


def static(slots: int, fill_timeout: float = math.inf, name: str = "static") -> Policy:
    """Request-level batching, as FasterTransformer behind a dynamic batcher runs it.

    A batch leaves when it is full, when its oldest member has waited `fill_timeout` seconds, or when the trace has
    ended; it runs until its last member ends (Orca, OSDI 2022, section 2; Triton's max_queue_delay_microseconds).
    """
    return Policy(name, "static", slots, fill_timeout=fill_timeout)


def continuous(slots: int, budget: int | None = None, prompts: Prompts = "chunked", name: str = "continuous") -> Policy:
    """Iteration-level batching (Orca, OSDI 2022, section 3, S1): the batch is chosen anew before every step.

    With a budget and chunked prompts these are the decisions of vLLM's v1 scheduler with unlimited memory.
    """
    return Policy(name, "continuous", slots, budget, prompts)


def vllm(slots: int, budget: int, memory: Memory, name: str = "vLLM v1") -> Policy:
    """vLLM 0.33.0's v1 scheduler (peers/vllm/SEMANTICS.md): running requests first, prompts in chunks, paged memory."""
    return Policy(name, "continuous", slots, budget, "chunked", memory=memory)


def vllm_v0(slots: int, budget: int, blocks: int, block_size: int = 16, swap_us: float | None = None,
            name: str = "vLLM v0") -> Policy:
    """vLLM before its v1 engine, as Sarathi-Serve (OSDI 2024, section 5) and PagedAttention (SOSP 2023, section 4.5) run it.

    Prompts go first, whole, in steps of their own; who needs a block makes the newest give way, to recompute or to swap;
    1 % of the blocks stay free at an admission while others run (Vidur's and vLLM's default watermark). Who was swapped out
    comes before every prompt, and decodes on beside the others.
    """
    memory = Memory(blocks, block_size, watermark=0.01, swap_us=swap_us)
    return Policy(name, "continuous", slots, budget, "alone", memory=memory)


def orca(slots: int, blocks: int, longest: int, block_size: int = 16, name: str = "Orca") -> Policy:
    """Orca (OSDI 2022, Algorithm 1): whole prompts beside the decodes, memory reserved at admission.

    Algorithm 1 reserves a request's own max_tokens; here, as in the PagedAttention paper's Orca (Max), that is `longest`.
    """
    return Policy(name, "continuous", slots, None, "whole", memory=Memory(blocks, block_size, reserve="maximum"), longest=longest)


def orca_in_one_piece(slots: int, tokens: int, longest: int, reserve: Reserve, noise: float = 0.0, seed: int = 0) -> Policy:
    """Orca as the PagedAttention paper runs it (SOSP 2023, section 6.1): one piece of a buddy allocator a request.

    "maximum" is its Orca (Max), "power" its Orca (Pow2), "output" its Orca (Oracle). `tokens`: token slots of the pool.
    """
    name = {"maximum": "Orca (Max)", "power": "Orca (Pow2)", "output": "Orca (Oracle)"}[reserve]
    memory = Memory(tokens, 1, reserve=reserve, contiguous=True)
    return Policy(name, "continuous", slots, None, "whole", memory=memory, longest=longest, noise=noise, seed=seed)


def sarathi_serve(slots: int, budget: int, blocks: int, block_size: int = 16, name: str = "Sarathi-Serve") -> Policy:
    """Sarathi-Serve (OSDI 2024, Algorithm 3): all decodes, then half-done prompts, then new ones, within the budget."""
    memory = Memory(blocks, block_size, watermark=0.01, full_prompt=True)
    return Policy(name, "continuous", slots, budget, "chunked", memory=memory)


def faster_transformer(slots: int, blocks: int, longest: int, fill_timeout: float = math.inf, block_size: int = 16,
                       name: str = "FasterTransformer") -> Policy:
    """FasterTransformer as Orca and PagedAttention measure it: static batches, memory reserved for the longest request."""
    memory = Memory(blocks, block_size, reserve="maximum")
    return Policy(name, "static", slots, fill_timeout=fill_timeout, memory=memory, longest=longest)
