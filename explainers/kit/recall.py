"""One question from an earlier lesson for each lesson on the path; no numbers, so that it can be answered from memory."""

from __future__ import annotations

from explainers.kit.quiz import Question, question

RECALL: dict[str, Question] = {
    "batching": question(
        "From “The life of one request”: a reply of 200 tokens has a TTFT and gaps between its tokens. What is its E2E latency?",
        ("TTFT plus 199 gaps", "The first token ends the TTFT; each of the other 199 comes a gap later."),
        ("TTFT plus 200 gaps", "every token has a gap before it", "The first one's wait is the TTFT."),
        ("200 times the TTFT", "every token takes as long as the first", "Only the first waits for queue and prompt."),
        ("The queue wait plus 200 gaps", "the prompt takes no time", "Its prefill is in the TTFT.")),
    "memory": question(
        "From “Static and continuous batching”: why does continuous batching gain nothing when all requests come at once "
        "with equal replies?",
        ("They end together, so there is no slot to refill while others run", "What it gives back are slots held after "
            "their own request."),
        ("It needs requests that come late", "only late arrivals gain", "Unequal lengths are enough."),
        ("Its steps are slower", "continuous batching has a price per step", "A step of the same tokens takes the same time."),
        ("The GPU is already full", "a full GPU cannot gain", "Held slots can be given back on a full GPU too.")),
    "preemption": question(
        "From “Reserve or page the memory”: why can paged memory run out in mid-reply, and reserved memory not?",
        ("Paged requests take blocks as tokens come; reserved ones took all at the start",
         "So more are let in than would fit if all grew long: that is its gain and its risk."),
        ("Blocks are smaller than tokens", "a block is a piece of a token", "A block holds many tokens."),
        ("Paging moves blocks to disk", "paging is swapping", "Blocks stay on the GPU."),
        ("Reserved memory is larger", "there are two sizes of memory", "Both have the same pool.")),
    "chunked_prefill": question(
        "From “Preemption and who goes first”: what does it cost to take a request's memory away and let it come back?",
        ("Reading its tokens anew, like a prompt, and the wait until there is room", "The tokens are known; only keys and "
            "values are gone."),
        ("Decoding its reply again, token by token", "known tokens must be guessed again", "They are read in one prefill."),
        ("Nothing, as its tokens are known", "known tokens need no computing", "Their keys and values must be made again."),
        ("Its reply, which starts from scratch", "a preempted request loses its reply", "It goes on where it was.")),
    "routing": question(
        "From “Chunked prefill”: a long prompt in chunks comes later to its first token. Who gains?",
        ("Everybody whose reply is under way: no step is longer than the budget allows", "The newcomer pays a little, the "
            "streams gain a lot."),
        ("The newcomer", "chunks are for the one who is chunked", "Its own first token comes later."),
        ("The GPU, which computes less", "chunks save work", "They cost some: the weights are read more often."),
        ("Nobody: the work is the same", "only the amount of work counts", "When a step ends counts for those who wait for it.")),
}
