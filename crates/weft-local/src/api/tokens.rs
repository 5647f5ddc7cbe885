//! ServiceAccount tokens: JWTs signed with a key made at start.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};

use super::meta;

/// The issuer, and the audience of tokens for the API itself.
pub(super) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Makes and reads tokens.
pub struct TokenSigner {
    key: EcdsaKeyPair,
    key_id: String,
}

impl std::fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSigner").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

/// Why a token does not count, in the words of a real server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadToken(pub String);

impl TokenSigner {
    pub fn generate() -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)
            .expect("P-256 keys can always be made: it takes only randomness");
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.public_key().as_ref());
        Self { key, key_id: BASE64.encode(digest) }
    }

    /// Signs claims.
    pub fn sign(&self, claims: &Value) -> String {
        let header = json!({ "alg": "ES256", "kid": self.key_id });
        let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed.as_bytes())
            .expect("signing with a key made here cannot fail: it takes only randomness");
        format!("{signed}.{}", BASE64.encode(signature))
    }

    /// The claims of a token signed here that has not expired. Audiences are the caller's to check.
    pub fn verify(&self, token: &str) -> Result<Value, BadToken> {
        let invalid = || BadToken("invalid bearer token".to_owned());
        // A bound on what is parsed; real tokens are a tenth of this.
        if token.len() > 16 * 1024 {
            return Err(invalid());
        }
        let (signed, signature) = token.rsplit_once('.').ok_or_else(invalid)?;
        let (header, claims) = signed.split_once('.').ok_or_else(invalid)?;
        let decode = |part: &str| BASE64.decode(part).ok();
        let header: Value =
            decode(header).and_then(|raw| serde_json::from_slice(&raw).ok()).ok_or_else(invalid)?;
        if header["alg"] != "ES256" {
            return Err(invalid());
        }
        let signature = decode(signature).ok_or_else(invalid)?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
        key.verify(signed.as_bytes(), &signature).map_err(|_| {
            BadToken("[invalid bearer token, go-jose/go-jose: error in cryptographic primitive]".to_owned())
        })?;
        let claims: Value =
            decode(claims).and_then(|raw| serde_json::from_slice(&raw).ok()).ok_or_else(invalid)?;
        let now = jiff::Timestamp::now().as_second();
        if meta::int(&claims, "/exp").is_none_or(|expiry| expiry <= now) {
            return Err(BadToken("[invalid bearer token, service account token has expired]".to_owned()));
        }
        Ok(claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_unless_tampered_with_or_expired() {
        let signer = TokenSigner::generate();
        let now = jiff::Timestamp::now().as_second();
        let token = signer.sign(&json!({ "sub": "a", "exp": now + 600 }));
        assert_eq!(signer.verify(&token).unwrap()["sub"], "a");

        let tampered = format!("{}AAAA", &token[..token.len() - 4]);
        assert!(signer.verify(&tampered).unwrap_err().0.contains("cryptographic"));
        assert!(TokenSigner::generate().verify(&token).is_err());
        let old = signer.sign(&json!({ "exp": now - 1 }));
        assert!(signer.verify(&old).unwrap_err().0.contains("expired"));
        assert_eq!(signer.verify("garbage").unwrap_err().0, "invalid bearer token");
    }

    #[test]
    fn no_other_algorithm_is_accepted() {
        let signer = TokenSigner::generate();
        let header = BASE64.encode(r#"{"alg":"none"}"#);
        let claims = BASE64.encode(r#"{"exp":99999999999}"#);
        assert!(signer.verify(&format!("{header}.{claims}.")).is_err());
    }
}
