// From a step's logits to tokens: on a GPU they are drawn where the logits lie, as far as settings
// allow; other rows come to the host.
#include <iterator>

#include "engine/batch_sequence.h"

namespace triax::engine {
/// A draw's settings and random number are known before the tokens in front of it are: the rows of
/// a draft are drawn together, each by the sampler as it will be then.
void BatchEngine::Work::prepare_samplers() {
  samplers.reserve(static_cast<size_t>(drafted + 1));
  samplers.push_back(sequence->sampler);
  for (int64_t i = 0; i < drafted; ++i) {
    samplers.push_back(samplers.back());
    if (samplers.back().params().temperature > 0.0f) {
      samplers.back().next_uniform();
    }
  }
}

Result<dense::SampledToken> BatchEngine::Work::take_sample(int64_t i) {
  const auto n = static_cast<size_t>(i);
  if (!samples[n].status.ok()) {
    return samples[n].status;
  }
  sequence->sampler = std::move(samplers[n]);
  return std::move(samples[n].token);
}

/// Whether a work's rows can stay on the GPU: nobody but its own sampler reads them.
bool BatchEngine::draws_on_device(const Work& work) const {
  if (engine_.device().cuda == nullptr || work.row_count() == 0) {
    return false;
  }
  const Sequence& sequence = *work.sequence;
  return !work.piece.samples || (sequence.sampler.draws_from_raw() && !sequence.branches());
}

/// Draws what is drawn on the GPU, all rows in one go; rows of other works get a sampler whose
/// token nobody reads.
Status BatchEngine::draw_on_device(std::vector<Work>& works, ConstTensorView logits) {
  std::vector<dense::Sampler> unread(static_cast<size_t>(logits.size(0)),
                                     dense::Sampler({.temperature = 0.0f}));
  std::vector<dense::Sampler*> samplers;
  for (Work& work : works) {
    if (work.on_device && work.piece.samples) {
      work.prepare_samplers();
    }
    const int64_t count = work.row_count();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t own = i - (count - static_cast<int64_t>(work.samplers.size()));
      samplers.push_back(own >= 0 ? &work.samplers[static_cast<size_t>(own)]
                                  : &unread[samplers.size()]);
    }
  }
  std::vector<dense::RowSample> samples(samplers.size());
  if (Status s = dense::sample_rows(engine_.device(), logits, samplers, samples); !s.ok()) {
    return s;
  }
  auto next = samples.begin();
  for (Work& work : works) {
    next += work.row_count();
    if (work.on_device) {
      work.samples.assign(std::make_move_iterator(next - work.drafted - 1),
                          std::make_move_iterator(next));
    }
  }
  return {};
}

/// Brings the rows of the other works to the host, one work's after another's.
Status BatchEngine::read_rows(std::vector<Work>& works, ConstTensorView logits, Tensor& host) {
  int64_t rows = 0;
  for (Work& work : works) {
    work.first_row = rows;
    rows += work.on_device ? 0 : work.row_count();
  }
  if (rows > 0) {
    host = Tensor::f32({rows, logits.size(1)});
  }
  int64_t from = 0;
  for (const Work& work : works) {
    const int64_t count = work.row_count();
    if (!work.on_device && count > 0) {
      const Status status = engine_.device().cuda->read(
          host.view().rows(work.first_row, work.first_row + count).raw(),
          logits.rows(from, from + count).raw(),
          count * logits.size(1) * static_cast<int64_t>(sizeof(float)));
      if (!status.ok()) {
        return status;
      }
    }
    from += count;
  }
  return {};
}

/// Tokens of the work's last rows where they were drawn on the GPU, else the rows.
Status BatchEngine::use_logits(std::vector<Work>& works, ConstTensorView logits, Tensor& host) {
  bool any = false;
  for (Work& work : works) {
    work.on_device = draws_on_device(work);
    any |= work.on_device;
  }
  const Status drawn = any ? draw_on_device(works, logits) : Status();
  return drawn.ok() ? read_rows(works, logits, host) : drawn;
}

}  // namespace triax::engine
