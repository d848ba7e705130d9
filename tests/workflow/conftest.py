"""A dev server that skips time: minutes and days between tries pass at once."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from deploy.dev.temporal import DYNAMIC
from inbox.temporal import DATA_CONVERTER, SEARCH_ATTRIBUTES


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[Client]:
    """A client whose workflows skip their waiting; in place of the plain one."""
    dynamic = DYNAMIC | {"frontend.WorkflowTimeSkippingEnabled": "true"}
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=str(Path(sys.prefix, "bin", "temporal")),
        dev_server_extra_args=[
            argument for name, value in dynamic.items() for argument in ("--dynamic-config-value", f"{name}={value}")
        ],
        data_converter=DATA_CONVERTER,
        search_attributes=[SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES],
    )
    async with environment:
        yield environment.client
