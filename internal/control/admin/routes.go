package admin

// addAll registers all operations.
func (a *API) addAll() {
	a.addDocument()
	a.addSession()
	a.addTokens()
	a.addRules()
	a.addResources()
	a.addKeys()
	a.addApply()
	a.addSubjects()
	a.addUsage()
	a.addBans()
	a.addOverrides()
	a.addExplain()
	a.addRecord()
	a.addLive()
	a.addStatus()
	a.addEnvoy()
	a.addChanges()
}
