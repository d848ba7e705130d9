"""The launcher's own questions to Temporal: whether it answers, whether our worker polls."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

TASK_QUEUE = os.environ.get("INBOX_NAME", "inbox")  # the children inherit it
_LIMIT = 5.0  # seconds for one question


@dataclass(frozen=True)
class TemporalAccess:
    """A server; `embedded` when we started it, else it is reached by the TEMPORAL_* settings."""

    address: str
    namespace: str
    embedded: bool

    def answers(self) -> bool:
        """Whether the server answers now."""
        try:
            return asyncio.run(asyncio.wait_for(self._healthy(), _LIMIT))
        except (RuntimeError, RPCError, TimeoutError):
            return False

    def polled(self, since: float) -> bool:
        """Whether the task queue had pollers of both kinds since then (Unix time, seconds)."""
        try:
            return asyncio.run(asyncio.wait_for(self._polled(since), _LIMIT))
        except (RuntimeError, RPCError, TimeoutError):
            return False

    async def _client(self) -> Client:
        if self.embedded:
            return await Client.connect(self.address, namespace=self.namespace)
        return await Client.connect(**ClientConfig.load_client_connect_config())

    async def _healthy(self) -> bool:
        return await (await self._client()).service_client.check_health()

    async def _polled(self, since: float) -> bool:
        client = await self._client()
        for kind in (
            TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        ):
            request = DescribeTaskQueueRequest(
                namespace=self.namespace,
                task_queue=TaskQueue(name=TASK_QUEUE),
                task_queue_type=kind,
            )
            answer = await client.workflow_service.describe_task_queue(request)
            # A server of the caller's may still list pollers that are gone.
            if not any(p.last_access_time.ToNanoseconds() / 1e9 >= since for p in answer.pollers):
                return False
        return True
