#include "bind/module.h"

namespace rannc::bind {

void init_runtime(py::module_&) {}

}  // namespace rannc::bind
