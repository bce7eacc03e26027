#include "bind/module.h"

namespace rannc::bind {

void init_profile(py::module_&) {}

}  // namespace rannc::bind
