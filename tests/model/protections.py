"""What keeps the protocols right. Each can be taken out of the models, and then something has to go wrong."""

from enum import Enum


class Protection(Enum):
    """One rule of the design; the value says what it is."""

    FOR_SHARE = "a fenced statement locks the shard row until it commits"
    CONDITIONAL_FENCE_IN = "a fence-in needs a lease newer than the stored one"
    GENERATION = "leases are compared by generation before token"
    BUMP_BEFORE_READ_BACK = "the epoch is raised before a claim of unknown outcome is read back"
    OPEN_CLAIM = "a result is accepted by the open claim, which an accepted outcome clears"
    REAPER_RECHECK = "the reaper's statement checks the worker's lease again"
    KILL_GRACE = "the attempt after a timeout waits for the stop or for the grace"
    EPOCH_GATE = "a worker refuses jobs of an epoch older than the newest it was told of"
    OLDER_EPOCH = "a report that does not name an attempt gives it back only if it is of an older epoch"
    STREAM_DISCARD = "a new stream discards the old one, unread messages included"
    FULL_LEASE_AFTER_OUTAGE = "no lease is taken for over until renewals have worked for a full lease"
    AS_OF_RENEWAL = "a lease counts as over only if it was so at this node's latest renewal"
    OWN_EARS = "an owner never reaps a worker that it hears"
    DOUBT_TAKEN_OUT = "a node that hears a worker takes other nodes' doubts out"
    DOUBT_STANDS = "a worker is given up only if a doubt stood in its row for the whole grace"
    FIRE_NEXT = "a firing compares the schedule's next time"
    FIRE_VERSION = "a firing compares the schedule's version"
    FIRE_PAUSED = "a firing checks that the schedule is not paused"
    ACK_BEFORE_RAISE = "a slot is given to a node only when the other has acknowledged that it lost it"
    FRESH_CREDIT = "a new stream begins without credit"
