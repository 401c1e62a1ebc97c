// The loops of the state codec for the instruction set in this file's name.
#include "store/state_codec_loops.h"

namespace triax::store::internal {

const StateCodecKernels& state_codec_portable() { return kKernels; }

}  // namespace triax::store::internal
