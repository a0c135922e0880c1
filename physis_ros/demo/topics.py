"""Names that the demo's processes share."""

TASK_STATUS = 'so101: task'

TRAJECTORY_RECEIVED = 'received'
TRAJECTORY_STARTED = 'started'
TRAJECTORY_REJECTED = 'rejected'
