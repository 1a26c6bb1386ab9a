"""``ModelDriver``: a language model takes the steps of a run.

A question is a step of its own, recorded before it is asked; the answer is recorded with the calls
that it wants, or with the run's end. The driver goes on from what is on record and repeats nothing:
a question whose answer was lost with its node is asked again, and the loss is recorded first. So is
a failure that may pass, with the time at which the question is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import UNSET

from rookery.actors.credentials import CredentialWait
from rookery.actors.execution.agents.code_tool import check_code_arguments
from rookery.actors.execution.agents.conversation import CallEnd, Conversation
from rookery.actors.execution.agents.extraction import EXTRACTION_RETRIES_MAX, extract
from rookery.actors.execution.agents.model_calls import judge_calls
from rookery.actors.execution.agents.model_port import ModelAnswer, ModelFailure, ModelTool
from rookery.actors.execution.driver import (
    AskModel,
    AwaitModel,
    CallsRequested,
    Finished,
    RunInput,
    StartJob,
    Step,
    SyncCall,
)
from rookery.actors.execution.models.model_attempt import (
    TIMEOUT_WALL,
    AttemptEnd,
    ModelAttempts,
    ModelServices,
)
from rookery.actors.execution.models.model_ends import (
    TURN_LIMIT,
    cancelled_end,
    compacted_end,
    completed_end,
    extracted_end,
    extraction_inputs,
    failed_end,
    invalid_end,
    limit_end,
    timeout_end,
    without_calls_inputs,
)
from rookery.actors.execution.models.model_failures import (
    is_retryable,
    plan_retry,
    recoverable_input,
)
from rookery.actors.execution.models.model_record import ModelRecord, NextAttempt, program_call
from rookery.actors.execution.models.model_routes import ModelRoutes
from rookery.actors.messages import TurnInput
from rookery.actors.sandbox import ToolResult
from rookery.schemas.agents import Compaction, ModelEnvironment, ModelPurpose
from rookery.schemas.calls import CallArguments
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import model
from rookery.schemas.machines.turn import LlmFailureKind
from rookery.schemas.run import ErrorObject, RunOutput, RunResult

__all__ = ["ModelDriver"]

LOSSES_MAX: Final = 3
"""A question is asked so often again because its answer was lost."""
RECOVERY_WORK_EXCEEDED: Final = "RECOVERY_WORK_EXCEEDED"
MODEL_FAILED: Final = "MODEL_FAILED"
MODEL_REFUSED: Final = "MODEL_REFUSED"
WAITING_FOR_MODEL: Final = "WAITING_FOR_MODEL"
JOB_POLL_S: Final = 0.5
JOB_POLL_S_MAX: Final = 30.0
"""A job is fetched after half of the time that it has taken, between these."""
JOB_FAILURES_MAX: Final = 8
RENEWED_KEYS_MAX: Final = 8
"""A lease that has a fresh key after every refusal is left after so many attempts."""
IN_VAIN_MAX: Final = 3
"""Answers in a row that want calls of which none can be made, or that say nothing."""


class ModelDriver:
    """One per run, while the run is executed."""

    def __init__(self, services: ModelServices) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._question: model.Requested | None = None
        """Recorded with this step, and asked by the next one."""
        self._is_waiting = False
        """This step waits until the model may be asked again."""
        self._asked_at_ms = self._failed_polls = 0
        """When the last question was asked, and how often its job could not be fetched."""
        self._attempts: ModelAttempts | None = None
        self._stopped = False

    # --- the port ---------------------------------------------------------------------------------

    async def begin(self, given: RunInput, call: SyncCall) -> Step:
        del call
        self._set_run(given)
        run = self._conversation.run
        if run.given_up is not None:
            return self._fail(run.given_up.code, run.given_up.message)
        if run.question is not None:
            return await self._continue_question(run.question)
        if run.unanswered is not None:
            return await self._continue_unanswered(run.unanswered)
        if run.step:  # It was answered: the calls of the answer are the only way on.
            return await self._ask()
        if given.request.compact is not UNSET:
            return await self._compact(given.request.compact)
        return await self._ask(messages=(await self._record.add_prompt(),))

    async def resume_parked(
        self,
        given: RunInput,
        answers: Mapping[int, ToolResult],
        call: SyncCall,
        advance_ms: int = 0,
    ) -> Step:
        del call, advance_ms
        self._set_run(given)
        return await self._end_calls(answers)

    async def next_step(self, answers: Mapping[int, ToolResult], advance_ms: int = 0) -> Step:
        if advance_ms:
            return self._time_out()
        unanswered = self._conversation.run.unanswered
        if self._is_waiting and unanswered is not None:
            return await self._ask_again(unanswered)
        open_question = self._conversation.run.question
        if self._is_waiting and open_question is not None:
            self._is_waiting = False
            return await self._ask_now(open_question)
        if answers or self._question is None:
            return await self._end_calls(answers)
        question, self._question = self._question, None
        if self._conversation.run.job:
            return self._await_job(question)
        return await self._ask_now(question)

    def output(self) -> RunOutput:
        return RunOutput()

    async def stop(self) -> RunResult | None:
        self._stopped = True
        if self._attempts is not None:
            self._attempts.stop()
        return None

    def _set_run(self, given: RunInput) -> None:
        environment = given.environment.model
        assert environment is not UNSET
        self._given, self._environment = given, environment
        self._conversation, self._tools = self._services.conversation_of(given.session)
        self._record = ModelRecord(
            self._services, given, environment, self._conversation, self._tools
        )
        self._routes = ModelRoutes(self._services, given, environment, self._conversation)
        self._attempts = ModelAttempts(self._services, given.session, environment)
        if self._stopped:
            self._attempts.stop()
        self._ends_s = self._loop.time() + environment.limits.wall_ms / 1_000

    _given: RunInput
    _environment: ModelEnvironment
    _conversation: Conversation
    _tools: Mapping[str, ModelTool]
    _record: ModelRecord
    _routes: ModelRoutes

    # --- questions --------------------------------------------------------------------------------

    async def _ask(
        self,
        *,
        messages: tuple[Fact, ...] = (),
        answers: tuple[Fact, ...] = (),
        inputs: tuple[TurnInput, ...] = (),
        compacts: bool = False,
    ) -> Step:
        """The next model step, unless the run may not take one. ``compacts``: it asks for a summary
        of older messages, as it does if they are too long."""
        run, turns = self._conversation.run, self._environment.limits.turns
        if run.step >= turns:
            text = f"the model was asked {turns} times"
            error = ErrorObject(code=TURN_LIMIT, message=text, hint="limits.turns of the request")
            return limit_end(self._given.run_id, self._conversation, error, answers, inputs)
        asked = NextAttempt(run.step + 1, 1, compacts=compacts or self._record.is_too_long())
        return await self._attempt(asked, messages=messages, answers=answers, inputs=inputs)

    async def _attempt(
        self,
        asked: NextAttempt,
        *,
        messages: tuple[Fact, ...] = (),
        answers: tuple[Fact, ...] = (),
        inputs: tuple[TurnInput, ...] = (),
    ) -> Step:
        """Ask, unless the budgets have no room for it."""
        self._is_waiting = False
        chosen = await self._routes.choose(advance=asked.advance)
        refusal = self._record.refusal(chosen) or await self._services.realm_budget.refusal(
            self._given.run_id, asked.step, asked.attempt, self._record.estimate(chosen)
        )
        if refusal is not None:
            return limit_end(self._given.run_id, self._conversation, refusal, answers, inputs)
        self._asked_at_ms = self._services.now_ms()
        self._question = self._record.ask(chosen, asked)
        return AskModel((*messages, self._question), answers, inputs)

    async def _ask_now(self, question: model.Requested) -> Step:
        """Ask, and go on from the answer."""
        assert self._attempts is not None
        self._services.realm_budget.on_recorded(question)
        end = await self._attempts.ask(
            question,
            self._record.messages_for(question),
            self._record.tools_for(question.purpose),
            left_s=self._ends_s - self._loop.time(),
            job=self._conversation.run.job,
        )
        if end.is_job_gone:
            return await self._ask_lost(question)
        if end.job or self._is_job_fetched_again(question, end):
            return self._await_job(question, end.job)
        if end.failure is not None:
            return await self._continue_failed(question, end, end.failure)
        if end.answer is None:
            return cancelled_end(self._conversation)
        return await self._continue_answered(question, end.answer, end)

    # --- jobs of providers ------------------------------------------------------------------------

    def _await_job(self, question: model.Requested, job: str = "") -> StartJob | AwaitModel:
        """Record the provider's job, then wait until it is fetched again."""
        if job and not self._conversation.run.job:
            self._question = question
            return StartJob(self._record.start_job(question, job))
        waited_ms = self._services.now_ms() - (question.at_ms or self._asked_at_ms)
        delay_s = min(JOB_POLL_S_MAX, max(JOB_POLL_S, waited_ms / 2_000))
        return self._fetch_job(question, delay_s)

    def _fetch_job(self, question: model.Requested, delay_s: float = 0) -> AwaitModel:
        self._is_waiting = True
        return AwaitModel(
            WAITING_FOR_MODEL,
            self._record.operation_of(question.step, question.attempt),
            delay_s=delay_s,
            until_ms=self._services.now_ms() + round(delay_s * 1_000),
            question=question,
        )

    def _is_job_fetched_again(self, question: model.Requested, end: AttemptEnd) -> bool:
        """Whether a job could not be fetched for a reason that may pass: to ask anew would be paid
        twice."""
        if not self._conversation.run.job or end.failure is None:
            return False
        self._failed_polls += 1
        may_pass = is_retryable(question, end.failure) or end.failure.is_renewed
        may_pass = may_pass and end.failure.code != TIMEOUT_WALL
        return may_pass and self._failed_polls <= JOB_FAILURES_MAX

    # --- without an answer ------------------------------------------------------------------------

    async def _continue_question(self, question: model.Requested) -> Step:
        """Go on from a question without an end on record: a job may have the answer."""
        if self._conversation.run.job:
            return self._fetch_job(question)
        return await self._ask_lost(question)

    async def _ask_lost(self, question: model.Requested) -> Step:
        """A question without an end on record is asked again, unless that was done too often: then
        an operator decides."""
        lost = self._record.lose(question)
        if self._conversation.run.losses > LOSSES_MAX:
            return self._await_operator(lost, (lost,))
        again = NextAttempt(question.step, question.attempt + 1, repeats=question.attempt)
        return await self._attempt(again, answers=(lost,))

    async def _continue_failed(
        self, question: model.Requested, end: AttemptEnd, failure: ModelFailure
    ) -> Step:
        """Go on from a failed attempt: ask again later, or end the run."""
        schedule = None
        if failure.code != TIMEOUT_WALL:
            schedule = plan_retry(
                question,
                failure,
                self._conversation.run.retries,
                retries_max=self._services.models.get(question.model).max_retries,
                duration_ms=end.duration_ms,
                jitter=self._services.jitter,
            )
        plan = UNSET if schedule is None else schedule.plan
        failed = await self._record.fail(question, end, plan)
        if schedule is not None:
            return self._await_retry(failed, (failed,), (recoverable_input(schedule),))
        if failure.code == TIMEOUT_WALL:
            return self._time_out((failed,))
        following = NextAttempt(question.step, question.attempt + 1)
        if failure.is_renewed and question.attempt < RENEWED_KEYS_MAX:
            return await self._attempt(following, answers=(failed,))
        if failure.wait is not None:
            return self._await_lease(failed, failure.wait)
        return await self._continue_without(question, failure, failed)

    async def _continue_without(
        self, question: model.Requested, failure: ModelFailure, failed: model.Failed
    ) -> Step:
        """Go on from a question that is not asked this model again as it is: with fewer messages,
        another model, or no summary."""
        if failure.kind is LlmFailureKind.CONTEXT_EXCEEDED and self._record.may_compact(question):
            return await self._ask(answers=(failed,), compacts=True)
        if failure.code == MODEL_FAILED and not (await self._routes.choose()).is_last:
            following = NextAttempt(question.step, question.attempt + 1, advance=True)
            return await self._attempt(following, answers=(failed,))
        if question.purpose is ModelPurpose.COMPACTION and not self._compacts_alone:
            return await self._ask(answers=(failed, *self._record.leave_out_results()))
        return self._end_failed(question, failure, (failed,))

    def _end_failed(
        self, question: model.Requested, failure: ModelFailure, answers: tuple[Fact, ...]
    ) -> Finished:
        run_id, text = self._given.run_id, failure.message
        if question.purpose is ModelPurpose.EXTRACTION and failure.code == MODEL_REFUSED:
            return invalid_end(run_id, self._conversation, text, answers, is_refusal=True)
        attempts = question.attempt if is_retryable(question, failure) else 0
        return self._fail(failure.code, text, answers, attempts)

    async def _continue_unanswered(self, end: model.Failed | model.Lost) -> Step:
        """Go on from the recorded end of an attempt: what it waited for may be over."""
        if isinstance(end, model.Failed) and end.retry_at_ms is not UNSET:
            return self._await_retry(end)
        if isinstance(end, model.Lost) and self._conversation.run.losses > LOSSES_MAX:
            return self._await_operator(end)
        return await self._ask_again(end)

    async def _ask_again(self, end: model.Failed | model.Lost) -> Step:
        """The next attempt of a step, now that its wait is over."""
        is_retry = isinstance(end, model.Failed) and end.plan is not UNSET
        retry = TurnInput("retry_requested", {"retry_attempt": self._conversation.run.retries})
        repeats = end.attempt if isinstance(end, model.Lost) else 0
        following = NextAttempt(end.step, end.attempt + 1, repeats=repeats)
        return await self._attempt(following, inputs=(retry,) if is_retry else ())

    def _await_retry(
        self,
        failed: model.Failed,
        answers: tuple[Fact, ...] = (),
        inputs: tuple[TurnInput, ...] = (),
    ) -> AwaitModel:
        assert failed.retry_at_ms is not UNSET
        self._is_waiting = True
        left_ms = failed.retry_at_ms - self._services.now_ms()
        return AwaitModel(
            WAITING_FOR_MODEL,
            self._record.operation_of(failed.step, failed.attempt),
            answers,
            inputs,
            delay_s=max(0, left_ms) / 1_000,
            until_ms=failed.retry_at_ms,
        )

    def _await_lease(self, failed: model.Failed, wait: CredentialWait) -> AwaitModel:
        self._is_waiting = True
        name = self._record.operation_of(failed.step, failed.attempt)
        return AwaitModel(wait.code, name, (failed,), lease=wait.lease)

    def _await_operator(self, lost: model.Lost, answers: tuple[Fact, ...] = ()) -> AwaitModel:
        self._is_waiting = True
        name = self._record.operation_of(lost.step, lost.attempt)
        return AwaitModel(RECOVERY_WORK_EXCEEDED, name, answers)

    # --- answers ----------------------------------------------------------------------------------

    async def _continue_answered(
        self, question: model.Requested, answer: ModelAnswer, end: AttemptEnd
    ) -> Step:
        if question.purpose is ModelPurpose.COMPACTION:
            return await self._continue_summarised(question, answer, end)
        judged = judge_calls(
            answer.calls,
            self._conversation.run,
            {tool.name: tool for tool in self._record.tools_for(question.purpose)},
            self._check,
            calls_max=self._environment.limits.tool_calls,
            operation_id=self._record.call_operation,
        )
        answered = await self._record.answer(question, answer, judged, end)
        refused = tuple(self._record.refuse(one) for one in judged if one.fault is not None)
        answers = (answered, *refused)
        admitted = [one for one in judged if one.fault is None]
        if admitted:
            self._conversation.admit([one.part.operation_id for one in admitted])
            calls = tuple(map(program_call, admitted))
            return CallsRequested(calls, answers=answers, wanted=len(judged), whole=True)
        run = self._conversation.run
        if not judged and answer.text and self._environment.output_schema is not UNSET:
            return await self._continue_extraction(answer, answered)
        if not judged and answer.text:
            return completed_end(self._given.run_id, self._conversation, answer, (answered,))
        if max(run.answers_in_vain, run.empty_answers) >= IN_VAIN_MAX:
            text = f"the model wanted nothing that it may have, {IN_VAIN_MAX} times in a row"
            return self._fail("MODEL_MISBEHAVED", text, answers)
        return await self._ask(
            answers=answers, inputs=without_calls_inputs(len(judged), has_waited=run.has_waited)
        )

    async def _continue_extraction(self, answer: ModelAnswer, answered: model.Answered) -> Step:
        """The text has to fit the schema of the result; else the model is asked for that."""
        extracted = extract(answer.text, self._environment.output_schema)
        run = self._conversation.run
        if not extracted.error:
            value = extracted.value
            return extracted_end(self._given.run_id, self._conversation, answer, value, (answered,))
        if run.extractions > EXTRACTION_RETRIES_MAX:
            error = f"after {run.extractions} questions for it: {extracted.error}"
            return invalid_end(self._given.run_id, self._conversation, error, (answered,))
        return await self._ask(
            messages=(await self._record.add_extraction(extracted.error),),
            answers=(answered,),
            inputs=extraction_inputs(extracted.error, is_first=not run.extractions),
        )

    async def _compact(self, asked: Compaction) -> Step:
        """Replace older messages: the run does nothing else."""
        older = self._conversation.older(asked.keep)
        if older and not asked.drop:
            return await self._ask(compacts=True)
        facts = (self._record.drop(older),) if older else ()
        return compacted_end(self._given.run_id, self._conversation, facts)

    @property
    def _compacts_alone(self) -> bool:
        return self._given.request.compact is not UNSET

    async def _continue_summarised(
        self, question: model.Requested, answer: ModelAnswer, end: AttemptEnd
    ) -> Step:
        """The summary takes the place of the older messages; an empty one only of results."""
        answered = await self._record.answer(question, answer, (), end)
        if not answer.text and self._compacts_alone:
            return self._fail("MODEL_MISBEHAVED", "the model wrote no summary", (answered,))
        if answer.text:
            compacted: tuple[Fact, ...] = (await self._record.summarise(answer.text),)
        else:
            compacted = self._record.leave_out_results()
        facts = (answered, *compacted)
        if self._compacts_alone:
            return compacted_end(self._given.run_id, self._conversation, facts)
        return await self._ask(answers=facts, inputs=without_calls_inputs(0, has_waited=False))

    async def _end_calls(self, answers: Mapping[int, ToolResult]) -> Step:
        """The calls of the last answer have ended; their results are asked about."""
        for number, result in sorted(answers.items()):
            name = self._record.call_operation(number)
            self._conversation.end_call(name, self._call_end(name, result))
        return await self._ask()

    def _call_end(self, operation_id: str, result: ToolResult) -> CallEnd:
        if result.error is not None:
            return CallEnd(error=result.error, duration_ms=result.duration_ms)
        if self._conversation.hides_result(operation_id):
            return CallEnd(duration_ms=result.duration_ms, hidden=True)
        return CallEnd(result.value, duration_ms=result.duration_ms)

    def _check(self, name: str, arguments: CallArguments) -> None:
        """Raise ``Refused`` for arguments that the tool does not accept."""
        if self._tools[name].is_code:
            check_code_arguments(arguments)
        else:
            self._services.check(name, arguments)

    def _time_out(self, answers: tuple[Fact, ...] = ()) -> Finished:
        limit_ms = self._environment.limits.wall_ms
        return timeout_end(self._given.run_id, self._conversation, limit_ms, answers)

    def _fail(
        self, code: str, message: str, answers: tuple[Fact, ...] = (), attempts: int = 0
    ) -> Finished:
        error = ErrorObject(code=code, message=message)
        return failed_end(self._given.run_id, self._conversation, error, answers, attempts)
