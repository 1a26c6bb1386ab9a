"""Lists of tasks: the newest first, in pages whose cursor is the last task of the page before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from a2a.types import ListTasksRequest, ListTasksResponse, TaskState
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)

from rookery.ops.a2a.messages import task_of
from rookery.ops.a2a.task_facts import TaskChange, TaskRecord

__all__ = ["list_tasks"]

PAGE_TASKS: Final = 50
_NS_PER_MS: Final = 1_000_000


async def list_tasks(
    params: ListTasksRequest,
    records: Iterable[TaskRecord],
    read_changes: Callable[[TaskRecord], Awaitable[Sequence[TaskChange]]],
) -> ListTasksResponse:
    """The page of a client's tasks that the request asks for."""
    validate_history_length(params)
    size = PAGE_TASKS
    if params.HasField("page_size"):
        validate_page_size(params.page_size)
        size = params.page_size
    found = sorted((one for one in records if _is_listed(params, one)), key=_position, reverse=True)
    after = _page_after(params.page_token)
    left = [one for one in found if after is None or _position(one) < after]
    tasks = []
    for record in left[:size]:
        task = task_of(record, await read_changes(record))
        if not params.include_artifacts:
            task.ClearField("artifacts")
        tasks.append(apply_history_length(task, params))
    return ListTasksResponse(
        tasks=tasks,
        next_page_token=_token(left[size - 1]) if len(left) > size else "",
        page_size=size,
        total_size=len(found),
    )


def _is_listed(params: ListTasksRequest, record: TaskRecord) -> bool:
    if params.context_id and params.context_id != record.context_id:
        return False
    if params.status and TaskState.Name(params.status) != record.state.value:
        return False
    if not params.HasField("status_timestamp_after"):
        return True
    after_ms: int = params.status_timestamp_after.ToMilliseconds()
    return record.updated_ms >= after_ms


def _position(record: TaskRecord) -> tuple[int, str]:
    return record.updated_ms, record.id


def _token(record: TaskRecord) -> str:
    return encode_list_tasks_cursor(
        ListTasksCursor(timestamp_ns=record.updated_ms * _NS_PER_MS, task_id=record.id)
    )


def _page_after(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token)
    if cursor is None or cursor.timestamp_ns is None:
        raise InvalidParamsError(f"page token {token[:80]!r} is none of this server")
    return cursor.timestamp_ns // _NS_PER_MS, cursor.task_id
