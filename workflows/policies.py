"""The retry policy of the activities, and the search attributes that workflows set (spec section 7).

Temporal's retry policy is for whatever is not a try's failure: a lost worker, Postgres away, a missing handler. A
try's failure carries its own delay, and its limit is the row's.
"""

from datetime import timedelta

from temporalio.common import RetryPolicy, SearchAttributeKey

# 0 attempts would mean “unlimited”, but a server's default may override that (design.md, retries).
FOR_EVER = 1_000_000_000
QUICK = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2,
    maximum_interval=timedelta(seconds=8),
    maximum_attempts=FOR_EVER,
)

STATUS = SearchAttributeKey.for_keyword("InboxStatus")
CODE = SearchAttributeKey.for_keyword("InboxCode")
