#include "bind/module.h"

namespace rannc::bind {

void init_frontend(py::module_&) {}

}  // namespace rannc::bind
