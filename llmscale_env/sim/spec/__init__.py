"""What both engines run from: a cluster in plain integers and arrays, and the checks of it.

`cluster` puts the parts together: `pools`, `routes`, `regions`, `links` (networks), `profile` (iteration
times) and `operations`. `kinds` has the words (states, rules, sources) as numbers, the `checks` what is
allowed. Whoever is no part of the simulator takes all of it from here.
"""

from llmscale_env.sim.spec.cluster import ClusterSpec as ClusterSpec
from llmscale_env.sim.spec.kinds import DECODE_KINDS as DECODE_KINDS
from llmscale_env.sim.spec.kinds import FROM_SSD as FROM_SSD
from llmscale_env.sim.spec.kinds import MAX_ARRIVAL_QUEUES as MAX_ARRIVAL_QUEUES
from llmscale_env.sim.spec.kinds import NEVER as NEVER
from llmscale_env.sim.spec.kinds import NO_SOURCE as NO_SOURCE
from llmscale_env.sim.spec.kinds import ControllerKind as ControllerKind
from llmscale_env.sim.spec.kinds import Fallback as Fallback
from llmscale_env.sim.spec.kinds import InstanceState as InstanceState
from llmscale_env.sim.spec.kinds import LiveMode as LiveMode
from llmscale_env.sim.spec.kinds import LoadSource as LoadSource
from llmscale_env.sim.spec.kinds import PoolPhase as PoolPhase
from llmscale_env.sim.spec.kinds import PreemptionMode as PreemptionMode
from llmscale_env.sim.spec.kinds import PullRule as PullRule
from llmscale_env.sim.spec.kinds import RequestState as RequestState
from llmscale_env.sim.spec.kinds import RouterKind as RouterKind
from llmscale_env.sim.spec.links import LINK_TABLES as LINK_TABLES
from llmscale_env.sim.spec.links import NetworkSpec as NetworkSpec
from llmscale_env.sim.spec.operations import Operations as Operations
from llmscale_env.sim.spec.operations import changed_operations as changed_operations
from llmscale_env.sim.spec.pools import PoolSpec as PoolSpec
from llmscale_env.sim.spec.pools import SwapSpec as SwapSpec
from llmscale_env.sim.spec.pools import V1Spec as V1Spec
from llmscale_env.sim.spec.pools import first_warm as first_warm
from llmscale_env.sim.spec.pools import fitting as fitting
from llmscale_env.sim.spec.profile import ProfileSpec as ProfileSpec
from llmscale_env.sim.spec.regions import LatencySpec as LatencySpec
from llmscale_env.sim.spec.regions import ManagerSpec as ManagerSpec
from llmscale_env.sim.spec.regions import ScalingKind as ScalingKind
from llmscale_env.sim.spec.regions import ScalingSpec as ScalingSpec
from llmscale_env.sim.spec.regions import ScalingThresholds as ScalingThresholds
from llmscale_env.sim.spec.regions import SpotSpec as SpotSpec
from llmscale_env.sim.spec.routes import ClassSpec as ClassSpec
from llmscale_env.sim.spec.routes import PlacementSpec as PlacementSpec
from llmscale_env.sim.spec.routes import RouteSpec as RouteSpec
