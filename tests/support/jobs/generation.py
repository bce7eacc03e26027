"""generate() of wrapped language models beside one process's, and save_pretrained().

Run by mpirun; prints one line of JSON for each case: its name and, on each rank, what went wrong.
"""

import copy
import json
import math
import sys
import tempfile
import traceback

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

import pyrannc
from pyrannc import Config, RaNNCModule, launch

RANK, SIZE = pyrannc.get_rank(), pyrannc.get_world_size()
CASES = {}
VOCABULARY = 61


def case(function):
    CASES[function.__name__] = function
    return function


def tokens(rows, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY, (rows, length), generator=generator)


class Both:
    """A language model in one process, and the same one on all ranks after a training step."""

    def __init__(self):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=40,
            eos_token_id=3, pad_token_id=0, bos_token_id=1,
        )  # fmt: skip
        self.plain = LlamaForCausalLM(config)
        model = copy.deepcopy(self.plain)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        settings = Config(
            partition_num=2, pipeline_num=2, calibrate=False, self_check=False, log_level="info"
        )
        self.wrapped = RaNNCModule(model, self.optimizer, settings)
        self.train()

    def train(self):
        """A step; afterwards one process has the same parameters."""
        ids = tokens(2, 8, RANK)
        self.wrapped.train()
        self.optimizer.zero_grad()
        self.wrapped(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()
        with self.wrapped.summon():
            self.plain.load_state_dict(self.wrapped.module.state_dict())
        self.plain.eval(), self.wrapped.eval()

    def compare(self, new=14, alone=False, length=6, **settings):
        """Tokens of this rank's rows beside those of one process: with all rows, or ``alone``.

        Returns the numbers of tokens and of captures.
        """
        prompts = tokens(2 * SIZE, length, 5)
        mask = torch.ones_like(prompts)
        mask[1::2, :2] = 0
        mine = [each.chunk(SIZE)[RANK] for each in (prompts, mask)]
        before = self.wrapped._runs._made
        results = []
        for model, (ids, of_ids) in (
            (self.plain, mine if alone else (prompts, mask)),
            (self.wrapped, mine),
        ):
            torch.manual_seed(3)
            results.append(
                model.generate(ids, attention_mask=of_ids, max_new_tokens=new, **settings)
            )
        expected, found = results
        if not alone:
            expected = expected.chunk(SIZE)[RANK]
        count = found.shape[1]
        assert expected.shape[1] >= count
        torch.testing.assert_close(found, expected[:, :count])
        assert not expected[:, count:].any(), "ended too early"  # 0 is padding
        captures = self.wrapped._runs._made - before
        assert captures <= math.log2(length + new), captures
        return count, captures


both = Both()


@case
def greedy_tokens_are_those_of_one_process():
    _, captures = both.compare(do_sample=False)
    assert captures == 3  # the prompts, and steps with up to 16 and up to 32 tokens
    assert both.compare(do_sample=False)[1] == 0


@case
def sampled_tokens_are_those_of_one_process():
    ends = [both.compare(do_sample=True, top_k=20, temperature=2.0)[0]]
    ends.append(both.compare(do_sample=True, num_return_sequences=2)[0])
    assert both.compare(do_sample=True)[1] == 0


@case
def without_a_cache_too():
    both.compare(do_sample=False, use_cache=False, new=8)
    both.compare(do_sample=True, use_cache=False, new=8)


@case
def beams_are_those_of_one_process():
    both.compare(do_sample=False, num_beams=2, new=6)


@case
def a_rank_stays_in_until_all_have_ended():
    both.compare(do_sample=False, alone=True, new=3 + 5 * RANK)
    both.compare(do_sample=False, alone=True, new=8 - 5 * RANK, length=5 + 2 * RANK)
    both.wrapped(input_ids=tokens(2, 8, RANK), labels=tokens(2, 8, RANK))


@case
def between_epochs_it_takes_what_was_trained():
    before = both.plain.model.embed_tokens.weight.clone()
    both.train()
    assert not torch.equal(before, both.plain.model.embed_tokens.weight)
    assert both.compare(do_sample=False)[1] == 0


@case
def with_an_encoder_each_rank_has_the_whole_meanwhile():
    torch.manual_seed(0)
    plain = T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    ).eval()
    model = RaNNCModule(copy.deepcopy(plain), config=both.wrapped.rannc.config)
    ids = tokens(2, 6, RANK)
    with torch.no_grad():
        model(input_ids=ids, decoder_input_ids=ids)
    chosen = {"decoder_start_token_id": 0, "num_beams": 2}
    for count in (4, 3 + 2 * RANK):
        found = model.generate(ids, max_new_tokens=count, **chosen)
        torch.testing.assert_close(found, plain.generate(ids, max_new_tokens=count, **chosen))
    with torch.no_grad():
        model(input_ids=ids, decoder_input_ids=ids)


@case
def with_the_whole_model_each_rank_generates_by_itself():
    with both.wrapped.summon(), torch.no_grad():
        found = both.wrapped.module.generate(tokens(2, 6, 0), max_new_tokens=4, do_sample=False)
    expected = both.plain.generate(tokens(2, 6, 0), max_new_tokens=4, do_sample=False)
    torch.testing.assert_close(found, expected)


@case
def a_loop_of_the_users_own_runs_through_the_pipeline():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)

        def forward(self, ids):
            return self.head(torch.tanh(self.embed(ids)).cumsum(1))

        def generate(self, ids, count):
            for _ in range(count):
                ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
            return ids

    plain = Loop()
    model = RaNNCModule(copy.deepcopy(plain), config=both.wrapped.rannc.config)
    with torch.no_grad():
        ids = tokens(2, 3, RANK) % 9
        model(ids)
        torch.testing.assert_close(model.generate(ids, 2), plain.generate(ids, 2))


@case
def save_pretrained_writes_the_whole_once():
    with tempfile.TemporaryDirectory() as own:
        folder = launch.world().broadcast(own.encode(), 0).decode()
        both.wrapped.save_pretrained(folder)
        loaded = LlamaForCausalLM.from_pretrained(folder).state_dict()
        for name, value in both.plain.state_dict().items():
            torch.testing.assert_close(loaded[name], value, rtol=0, atol=0)
        launch.barrier()


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name]()
            fault = ""
        except Exception:
            fault = traceback.format_exc()
        print(json.dumps({"case": name, "rank": RANK, "fault": fault}) + "\n", end="", flush=True)
        pyrannc.barrier()
