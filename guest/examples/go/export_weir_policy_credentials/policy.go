// Package export_weir_policy_credentials is a policy that gets a key for each team from a service of your own, and uses it
// until it expires. `../../token-service` is the same in Rust, `../../javascript` in JavaScript, `../../python` in Python.
package export_weir_policy_credentials

import (
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	wit "go.bytecodealliance.org/pkg/wit/types"
	"wit_component/weir_policy_credentials"
	"wit_component/weir_policy_http"
	"wit_component/weir_policy_log"
)

// Each question has an instance of its own, so its memory need not be collected. A collection could also begin where the
// contract allows no call but for memory.
func init() {
	debug.SetGCPercent(-1)
}

// Decide says what opens the upstream.
func Decide(about weir_policy_credentials.Question) weir_policy_credentials.Decision {
	minted, why := decided(about)
	if why != nil {
		return weir_policy_credentials.MakeDecisionStop(why.Error())
	}
	return weir_policy_credentials.MakeDecisionMint(minted)
}

func decided(about weir_policy_credentials.Question) (minted weir_policy_credentials.MintedToken, why error) {
	name := about.Upstream.Name
	service := textOf(about.Upstream.Settings, "service")
	if service == "" {
		return minted, fmt.Errorf("%s has no key service; set `service` in the settings of its policy", name)
	}
	team := ""
	if about.Principal.IsSome() {
		team = textOf(about.Principal.Some().Claims, "team")
	}
	if team == "" {
		return minted, fmt.Errorf("your token has no team, which %s needs; ask whoever gives out tokens", name)
	}
	answer := asked(service, map[string]string{"upstream": name, "team": team})
	if answer.IsErr() {
		return minted, fmt.Errorf("the key service of %s cannot be asked: %s", name, answer.Err())
	}
	if status := answer.Ok().Status; status != 200 {
		return minted, fmt.Errorf("the key service of %s answered with status %d; try again later", name, status)
	}
	key, seconds, isGood := read(answer.Ok().Body)
	if !isGood {
		return minted, fmt.Errorf("the key service of %s gave no key; ask whoever runs it", name)
	}
	weir_policy_log.Write(weir_policy_log.Level_Info, fmt.Sprintf("a key for the team %s, for %d s", team, seconds))
	minted = weir_policy_credentials.MintedToken{
		Header:     "authorization",
		Scheme:     wit.Some("Bearer"),
		Text:       key,
		TtlSeconds: seconds,
	}
	return minted, nil
}

// The answer of the service, or what went wrong.
func asked(url string, question map[string]string) wit.Result[weir_policy_http.Response, string] {
	body, _ := json.Marshal(question)
	return weir_policy_http.Send(weir_policy_http.Request{
		Method:  weir_policy_http.Method_Post,
		Url:     url,
		Headers: []wit.Tuple2[string, string]{{F0: "content-type", F1: "application/json"}},
		Body:    body,
	})
}

// A member of an object that is a text; empty if it is missing or something else.
func textOf(document, key string) string {
	var members map[string]any
	if json.Unmarshal([]byte(document), &members) != nil {
		return ""
	}
	text, _ := members[key].(string)
	return text
}

// The key in an answer, and for how many seconds it is good.
func read(body []byte) (key string, seconds uint32, isGood bool) {
	var answer struct {
		Key     string
		Seconds *uint32 `json:"expires_in"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Key == "" || answer.Seconds == nil {
		return "", 0, false
	}
	// What is no text, such as half of a surrogate pair, is this rune by now.
	if strings.ContainsRune(answer.Key, utf8.RuneError) {
		return "", 0, false
	}
	return answer.Key, *answer.Seconds, true
}
