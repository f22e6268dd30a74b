// Package export_weir_policy_connection is a policy about connections: Streamable HTTP, first in the modern era, then in
// the legacy era.
package export_weir_policy_connection

import (
	"runtime/debug"

	"wit_component/weir_policy_connection"
	"wit_component/weir_policy_types"
)

// Each question has an instance of its own, so its memory need not be collected. A collection could also begin where the
// contract allows no call but for memory.
func init() {
	debug.SetGCPercent(-1)
}

// Next says what to try, after what was tried.
func Next(to weir_policy_types.Upstream, history []weir_policy_types.Attempt) weir_policy_connection.Step {
	candidate := weir_policy_connection.Candidate{Transport: weir_policy_types.Transport_Http}
	if len(history) == 0 {
		candidate.Era = to.RequiredEra.SomeOr(weir_policy_types.Era_Modern)
		return weir_policy_connection.MakeStepAttempt(candidate)
	}
	last := history[len(history)-1]
	outcome := last.Outcome.Tag()
	wasModern := last.Era == weir_policy_types.Era_Modern
	if wasModern && outcome == weir_policy_types.Outcome_Unsupported && to.RequiredEra.IsNone() {
		candidate.Era = weir_policy_types.Era_Legacy
		return weir_policy_connection.MakeStepAttempt(candidate)
	}
	if outcome == weir_policy_types.Outcome_Unauthorized && !last.Credential {
		candidate.Transport, candidate.Era = last.Transport, last.Era
		return weir_policy_connection.MakeStepAuthorize(candidate)
	}
	return weir_policy_connection.MakeStepStop(to.Name + " cannot be reached over Streamable HTTP; look at its address")
}
