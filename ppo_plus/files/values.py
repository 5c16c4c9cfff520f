"""Values as text and arrays, and back: all that the other files of this room need."""

from ppo_plus.files.describing import Undescribable as Undescribable
from ppo_plus.files.describing import describe as describe
from ppo_plus.files.names import Damaged as Damaged
from ppo_plus.files.names import Refused as Refused
from ppo_plus.files.names import register as register
from ppo_plus.files.restoring import restore as restore
