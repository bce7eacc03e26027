#include "rannc/cost/graph_profile.h"
