"""The public entry: load a model, generate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from smartree.config import EngineConfig
from smartree.cost.profile import Profile
from smartree.drafters.base import Drafter
from smartree.drafters.factory import make_drafter, model_drafter
from smartree.engine.engine import Engine
from smartree.engine.knowledge import Knowledge
from smartree.engine.measure import Progress
from smartree.engine.output import RequestOutput
from smartree.engine.request import Request
from smartree.engine.streaming import OutputStream, StreamPiece
from smartree.errors import InputError
from smartree.models.follower import load_target
from smartree.models.load import prepare_model
from smartree.policies.base import Policy
from smartree.policies.factory import NEED_COST, POLICY_NAMES, make_policy
from smartree.sampling_params import SamplingParams

Message = Mapping[str, str]
Prompt = str | Sequence[int]
Done = Callable[[Request], None]


class LLM:
    """A language model with speculative decoding that sizes itself to the device.

    >>> llm = LLM("demo")
    >>> outputs = llm.generate(["Once upon a time"], SamplingParams(max_tokens=32))
    >>> outputs[0].text
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        drafter: str | PreTrainedModel | Drafter = "auto",
        policy: str | Policy = "smart",
        dtype: str = "auto",
        device: str = "auto",
        max_batch: int = 16,
        max_model_len: int | None = None,
        prefill_tokens: int = 512,
        cache_tokens: int | None = None,
        prefix_reuse: bool = True,
        profile: str | Path | Profile | None = None,
        progress: Progress | None = None,
        tensor_parallel: bool | None = None,
        cuda_graphs: bool = False,
    ) -> None:
        """Args:
            model: "demo", a folder, a Hugging Face id, or a model in memory (which is changed in place).
            tokenizer: of a model in memory.
            drafter: "auto" (the head that comes with the package for this model, lookup joined, else lookup alone),
                "head" (that head alone), "ngram" (lookup), "none", an EAGLE-3 head or a draft model (folder or id;
                "NAME+ngram" joins lookup), a draft model in memory, or an own drafter.
            policy: "smart", "none", "paper", "eagle2", or an own policy.
            dtype: "auto", "bfloat16", "float16", "float32" or "float64".
            device: "auto", "cpu", "cuda" or "cuda:N".
            max_batch: most requests decoded together.
            max_model_len: longest prompt plus output; None takes the model's window.
            prefill_tokens: most prompt tokens packed into one step.
            cache_tokens: cache rows of all requests together; None takes `max_batch` times the window.
            prefix_reuse: whether requests share the cached rows of equal beginnings.
            profile: cost profile of this setup; None uses the saved one, and measures it (12 s) if there is none.
            progress: called with (done, expected) while a profile is measured.
            tensor_parallel: whether the processes that torchrun started share the model; None does so if there are
                several. Every rank but 0 then stays in here until rank 0 is done, and ends (docs/devices.md).
            cuda_graphs: whether target passes are recorded as CUDA graphs; not tried on a GPU yet (docs/devices.md).

        Raises:
            InputError: something does not exist or does not fit.
        """
        self.config = EngineConfig(
            model=_name(model),
            drafter=_name(drafter),
            policy=_name(policy),
            dtype=dtype,
            device=device,
            max_batch=max_batch,
            max_model_len=max_model_len,
            prefill_tokens=prefill_tokens,
            profile=Path(profile) if isinstance(profile, str | Path) else None,
            cache_tokens=cache_tokens,
            prefix_reuse=prefix_reuse,
            cuda_graphs=cuda_graphs,
        )
        if isinstance(policy, str) and policy not in POLICY_NAMES:
            make_policy(policy, None)  # says which names there are, before anything is loaded
        if tensor_parallel and not isinstance(model, str):
            raise InputError("A model in memory cannot be shared among processes; give its folder or id instead.")
        stored = Profile.load(Path(profile)) if isinstance(profile, str | Path) else profile
        self.target = (
            load_target(model, dtype, device, tensor_parallel)
            if isinstance(model, str)
            else prepare_model(model, tokenizer, _name(model))
        )
        self.window = min(max_model_len or self.target.window, self.target.window)
        self.drafter = self._drafter_of(drafter, tokenizer)
        self.knowledge = Knowledge(self.target, self.drafter, max_batch, self.window, stored, self.config.profile)
        if isinstance(policy, str) and policy in NEED_COST:
            self.knowledge.ensure_profile(progress)
        self.engine = self.make_engine(policy)

    def _drafter_of(
        self, drafter: str | PreTrainedModel | Drafter, tokenizer: PreTrainedTokenizerBase | None
    ) -> Drafter | None:
        """A drafter by name, a draft model in memory with the target's tokenizer, or an own drafter as it is."""
        if isinstance(drafter, str):
            return make_drafter(drafter, self.target, self.config.max_batch, self.window)
        if isinstance(drafter, PreTrainedModel):
            loaded = prepare_model(drafter, tokenizer, _name(drafter))
            return model_drafter(loaded, self.target, self.config.max_batch, self.window)
        return drafter

    @property
    def profile(self) -> Profile | None:
        """The measured costs of this setup, with what engines have learned on it; None if nothing was measured."""
        return self.knowledge.profile

    def make_engine(
        self, policy: str | Policy, max_batch: int | None = None, *, prefix_reuse: bool | None = None
    ) -> Engine:
        """Another engine on the same model, with a policy of its own: what a comparison in one process needs.

        It begins with what the profile says that earlier engines have learned (`learn_from`).

        Args:
            policy: its policy.
            max_batch: most requests decoded together, up to the model's own limit, which None takes.
            prefix_reuse: whether its requests share rows of equal beginnings; None does as the model was told.

        Raises:
            InputError: the policy is unknown or needs a profile that was not measured, or what it has learned is
                malformed.
        """
        if isinstance(policy, str):
            if policy in NEED_COST:
                self.knowledge.ensure_profile()
            policy = self.knowledge.make_policy(policy)
        return Engine(
            self.target,
            self.drafter.fresh() if self.drafter is not None and policy.speculates else None,
            policy,
            max_batch=min(max_batch or self.config.max_batch, self.config.max_batch),
            window=self.window,
            prefill_tokens=self.config.prefill_tokens,
            calibration=self.knowledge.calibration(),
            cache_tokens=self.config.cache_tokens,
            prefix_reuse=self.config.prefix_reuse if prefix_reuse is None else prefix_reuse,
            cuda_graphs=self.config.cuda_graphs,
        )

    def learn_from(self, engine: Engine | None = None) -> bool:
        """Takes what an engine has learned into the profile, so that the engines made from now on begin with it.

        That is how often drafts are accepted, what the clock says of passes and of drafting, and what speculation
        achieves by batch size. What of it was of one text or one hour only, later engines soon correct.

        Args:
            engine: None takes the model's own.

        Returns:
            False if there is nothing to learn: no profile of this setup, or no drafter.
        """
        return self.knowledge.learn_from(engine or self.engine)

    def save_learned(self, engine: Engine | None = None) -> bool:
        """Saves what an engine has learned (`learn_from`) with this setup's profile, for the next start.

        Args:
            engine: None takes the model's own.

        Returns:
            False if there was nothing to learn.

        Raises:
            OSError: the profile cannot be written.
        """
        learned = self.learn_from(engine)
        if learned:
            self.knowledge.save()
        return learned

    def measure(self, progress: Progress | None = None) -> Profile:
        """Measures this setup and saves the profile in the user's cache folder."""
        return self.knowledge.measure(progress)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; an empty text becomes the model's start token.

        Raises:
            InputError: text without a tokenizer.
        """
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        tokenizer = self._tokenizer()
        ids = list(tokenizer(prompt)["input_ids"])
        return ids or ([tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else [])

    def apply_chat_template(self, messages: Sequence[Message]) -> str:
        """A conversation as the text that the model was trained on, ready for its answer.

        Raises:
            InputError: the tokenizer has no chat template.
        """
        tokenizer = self._tokenizer()
        if not tokenizer.chat_template:
            raise InputError(f"{self.target.name!r} has no chat template; give plain prompts.")
        conversation = [dict(message) for message in messages]
        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        return str(text)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation; the template writes the special tokens itself."""
        text = self.apply_chat_template(messages)
        return list(self._tokenizer()(text, add_special_tokens=False)["input_ids"])

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        done: Done | None = None,
        engine: Engine | None = None,
    ) -> list[RequestOutput]:
        """Decodes prompts together, `max_batch` at a time.

        Args:
            prompts: texts or lists of token ids; one alone is fine.
            params: for all, or one each; None takes the defaults.
            done: called with each request that ends.
            engine: one of `make_engine`; None takes the model's own.

        Returns:
            One output per prompt, in their order; with n > 1 its `outputs` are all n.

        Raises:
            InputError: a prompt or its parameters cannot be used; nothing is decoded then.
        """
        batch = _as_batch(prompts)
        each = [params or SamplingParams()] * len(batch) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(batch):
            raise InputError(f"{len(batch)} prompts came with {len(each)} sampling parameters; give one each or one.")
        engine = engine or self.engine
        requests: list[Request] = []
        groups: list[list[Request]] = []  # the n requests of each prompt
        try:
            for prompt, one in zip(batch, each, strict=True):
                tokens = self.encode(prompt)
                groups.append([])
                for params_of_one in Request.spread(one):
                    requests.append(engine.add(tokens, params_of_one))
                    groups[-1].append(requests[-1])
            with engine.in_a_hurry():
                while engine.unfinished:
                    for request in engine.step():
                        if request.finish_reason is not None and done is not None:
                            done(request)
        except BaseException:
            for request in requests:  # Ctrl-C or bad input leaves no request behind
                if request.finish_reason is None:
                    engine.abort(request)
            raise
        return [self._output(prompt, *group) for prompt, group in zip(batch, groups, strict=True)]

    def chat(
        self, conversations: Sequence[Message] | Sequence[Sequence[Message]], params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """Answers conversations, each a list of {"role", "content"} messages; one alone is fine."""
        single = bool(conversations) and isinstance(conversations[0], Mapping)
        each: Any = [conversations] if single else conversations
        outputs = self.generate([self.encode_chat(messages) for messages in each], params)
        texts = [self.apply_chat_template(messages) for messages in each]
        return [_with_prompt(output, text) for output, text in zip(outputs, texts, strict=True)]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """The text of one output, piece by piece as it is decoded.

        Raises:
            InputError: the prompt or its parameters cannot be used; n is above 1.
        """
        self._tokenizer()
        for piece in self.stream_pieces(prompt, params):
            if piece.text or piece.output is not None:
                yield piece.text

    def stream_pieces(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamPiece]:
        """One output, piece by piece, with tokens and what speculation did; the last piece carries the whole output."""
        request = self.engine.add(self.encode(prompt), params or SamplingParams())
        stream = OutputStream(request, self.target.tokenizer)
        try:
            while request.finish_reason is None:
                self.engine.step()
                piece = stream.more() if request.finish_reason is None else None
                if piece is not None:
                    yield piece
            yield stream.last(self.output_of(prompt, request))
        finally:
            self.engine.abort(request)

    def output_of(self, prompt: Prompt, request: Request) -> RequestOutput:
        """What a user gets of a request that has ended."""
        return self._output(prompt, request)

    def _output(self, prompt: Prompt, request: Request, *others: Request) -> RequestOutput:
        return RequestOutput(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=request.tokens[: request.prompt_length],
            text=self._text(request),
            token_ids=request.output,
            finish_reason=request.finish_reason or "",
            seed=request.seed,
            stats=request.stats,
            logprobs=request.logprobs if request.params.logprobs is not None else None,
            others=tuple(self._output(prompt, other) for other in others),
        )

    def _text(self, request: Request) -> str:
        if request.stop_text is not None and request.stop_text.cut is not None:
            return request.stop_text.cut
        if self.target.tokenizer is None:
            return ""
        return str(self.target.tokenizer.decode(request.output, skip_special_tokens=True))

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.target.tokenizer is None:
            raise InputError(
                f"{self.target.name!r} has no tokenizer, so it takes token ids only; put the tokenizer's files into "
                "its folder."
            )
        return self.target.tokenizer


def _name(thing: object) -> str:
    """What to call something that was given by name or in memory."""
    return thing if isinstance(thing, str) else type(thing).__name__


def _with_prompt(output: RequestOutput, text: str) -> RequestOutput:
    return replace(output, prompt=text, others=tuple(_with_prompt(other, text) for other in output.others))


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list of prompts."""
    first = None if isinstance(prompts, str) or len(prompts) == 0 else prompts[0]
    # Token ids may come as a list, a numpy array or a tensor, whose elements have no dimension.
    if isinstance(prompts, str) or isinstance(first, Integral) or getattr(first, "ndim", None) == 0:
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
