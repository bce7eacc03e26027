"""The errors that a user can cause and mend; all are ``RaNNCError``."""

from pyrannc import _C

RaNNCError = _C.util.RaNNCError
ConfigError = _C.util.ConfigError
TraceError = _C.util.TraceError
PlanError = _C.util.PlanError
InfeasibleError = _C.util.InfeasibleError
CommError = _C.util.CommError
