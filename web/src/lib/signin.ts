// Why signing in with the identity provider failed: the server sends one of these words, and its log has the details.

export const failures: Record<string, string> = {
  expired: 'It took too long, or began in another browser. Try again.',
  denied: 'The identity provider has refused. Try again, or ask an administrator.',
  group: 'Your account is in no group that may sign in here. Ask an administrator.',
  invalid: 'The answer of the identity provider was not acceptable. The log of the server says why.',
  unreachable: 'The identity provider does not answer. Try again in a moment, or use a token.',
  too_many: 'There were too many failures from your address. Wait a minute and try again.',
}
