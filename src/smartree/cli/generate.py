"""`smartree generate`: decodes prompts."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from smartree.cli import options, sampling
from smartree.cli.header import run_header
from smartree.cli.json_file import JsonFile
from smartree.cli.loading import load_llm, remember
from smartree.cli.prompts import Prompt, gather_prompts, has_chat_template
from smartree.cli.terminal import note, progress_bar, result_console, shorten
from smartree.config import EngineConfig
from smartree.sampling_params import SamplingParams

if TYPE_CHECKING:
    from smartree.engine.llm import LLM
    from smartree.engine.output import RequestOutput
    from smartree.verify.logprobs import TokenLogprob


def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; stdin is one prompt if none are given.")] = None,
    prompts: options.PromptsFile = None,
    limit: options.Limit = None,
    raw: options.Raw = False,
    json: options.Json = None,
    model: options.Model = "demo",
    drafter: options.Drafter = "auto",
    policy: options.Policy = "smart",
    batch: options.Batch = 16,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    profile: options.ProfileFile = None,
    max_model_len: options.MaxModelLen = None,
    cache_tokens: options.CacheTokens = None,
    prefix_reuse: options.PrefixReuse = True,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    min_p: sampling.MinP = 0.0,
    presence_penalty: sampling.PresencePenalty = 0.0,
    frequency_penalty: sampling.FrequencyPenalty = 0.0,
    repetition_penalty: sampling.RepetitionPenalty = 1.0,
    min_tokens: sampling.MinTokens = 0,
    logprobs: sampling.Logprobs = None,
    n: sampling.Outputs = 1,
    json_schema: sampling.JsonSchema = None,
    regex: sampling.Regex = None,
    choice: sampling.Choice = None,
) -> None:
    """Decode prompts and print the outputs."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        min_tokens=min_tokens,
        logprobs=logprobs,
        n=n,
        guide=sampling.read_guide(json_schema, regex, choice),
    )
    target = JsonFile(json)
    given = gather_prompts(prompt or [], prompts, limit)
    setup = EngineConfig(
        model,
        drafter,
        policy,
        dtype,
        device,
        batch,
        max_model_len,
        profile=profile,
        cache_tokens=cache_tokens,
        prefix_reuse=prefix_reuse,
    )
    llm = load_llm(setup)
    outputs, seconds = decode(llm, given, params, raw)
    if not target.to_stdout:
        print_outputs(given, outputs)
    target.write(report(llm, given, outputs, params, seconds, raw))
    remember(llm)
    note(summary(llm, outputs, seconds))


def decode(llm: LLM, prompts: Sequence[Prompt], params: SamplingParams, raw: bool) -> tuple[list[RequestOutput], float]:
    """The outputs and the seconds they took, with progress on stderr.

    Raises:
        InputError: a prompt cannot be used; nothing is decoded then.
    """
    tokens = [prompt.encode(llm, raw) for prompt in prompts]
    with progress_bar() as bar:
        task = bar.add_task("Decoding", total=len(tokens) * params.n)
        begin = perf_counter()
        outputs = llm.generate(tokens, params, done=lambda request: bar.advance(task))
        return outputs, perf_counter() - begin


def print_outputs(prompts: Sequence[Prompt], outputs: Sequence[RequestOutput]) -> None:
    """Prints each prompt, its outputs, and what speculation did for them."""
    console = result_console()
    for prompt, first in zip(prompts, outputs, strict=True):
        console.print(Text(f"> {shorten(prompt.text)}", style="bold"), soft_wrap=True)
        for output in first.outputs:
            facts = f"{len(output.token_ids)} tokens, {output.finish_reason}, tau {output.stats.tau:.2f}"
            console.print(Text(output.text.strip("\n")), soft_wrap=True)
            console.print(Text(f"[{facts}]\n", style="dim"), soft_wrap=True)


def report(
    llm: LLM,
    prompts: Sequence[Prompt],
    outputs: Sequence[RequestOutput],
    params: SamplingParams,
    seconds: float,
    raw: bool,
) -> dict[str, Any]:
    """The JSON of the outputs; `prompt` is what was given, `prompt_token_ids` what the model saw."""
    tokens = token_count(outputs)
    header = run_header(
        llm,
        params,
        chat_template=has_chat_template(llm) and not raw,
        seconds=seconds,
        tokens=tokens,
        tokens_per_second=tokens / seconds,
        engine=llm.engine.stats.to_json(),
    )
    rows = [
        {
            "prompt": prompt.text,
            "token_ids": output.token_ids,
            "text": output.text,
            "finish_reason": output.finish_reason,
            "stats": output.stats.to_json(),
            "seed": output.seed,
            "prompt_token_ids": output.prompt_token_ids,
        }
        | ({"id": prompt.id} if prompt.id is not None else {})
        | ({"output": number} if params.n > 1 else {})
        | ({"logprobs": logprob_rows(llm, output.logprobs)} if output.logprobs is not None else {})
        for prompt, first in zip(prompts, outputs, strict=True)
        for number, output in enumerate(first.outputs)
    ]
    return {"header": header, "rows": rows}


def logprob_rows(llm: LLM, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Tokens with their texts and log-probabilities; `top` holds the likeliest ones, best first."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        tokenizer = llm.target.tokenizer
        return {"token_id": token, "text": tokenizer.decode([token]) if tokenizer else "", "logprob": logprob}

    return [entry(one.token_id, one.logprob) | {"top": [entry(*pair) for pair in one.top]} for one in logprobs]


def token_count(outputs: Sequence[RequestOutput]) -> int:
    """Tokens of all outputs of all prompts."""
    return sum(len(output.token_ids) for first in outputs for output in first.outputs)


def summary(llm: LLM, outputs: Sequence[RequestOutput], seconds: float) -> str:
    """All outputs in one line."""
    tokens, count = token_count(outputs), sum(len(first.outputs) for first in outputs)
    stats = llm.engine.stats
    return (
        f"{count} {'output' if count == 1 else 'outputs'}, {tokens} tokens in {seconds:.1f} s: "
        f"{tokens / seconds:.1f} tokens/s, tau {stats.tau:.2f}, {stats.steps} steps"
    )
